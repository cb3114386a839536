# The C types of `_codec.py`. Whatever is `nogil` here cannot touch a Python object by mistake.

cimport cython
from cpython.bytes cimport PyBytes_AsString
from libc.string cimport memcpy

ctypedef unsigned char octet_t
ctypedef long long int64
ctypedef unsigned long long uint64

cdef int _BAD_VARINT, _BAD_LENGTH, _BAD_HEADER_COUNT, _BAD_RECORD_LENGTH
cdef int _BAD_DELTA, _BAD_TIMESTAMP, _NAMELESS, _TOO_MANY_HEADERS, _KEYLESS, _UNTIMELY
cdef int _RELEASE_BYTES, _PLAIN_BYTES, _SHORT_END
cdef int _HEADER_BYTES, _VARINT_BYTES_MAX, _VARLONG_BYTES_MAX
cdef int64 _INT64_MAX, _INT64_MIN, _MS_MAX, _UINT32
cdef uint64 _UINT64


cdef extern from "Python.h":
    int PyByteArray_Resize(object, Py_ssize_t) except -1


cdef class Binary:
    cdef object views
    cdef octet_t *data
    cdef octet_t *valid
    cdef int *ends
    cdef bint wanted
    cdef readonly int64 size, rows, nulls


cdef class Rows:
    cdef object views
    cdef readonly int64 count, parsed, too_far, header_bytes
    cdef readonly int refusal
    cdef bint has_headers
    cdef int64 first, last
    cdef int64 base_offset, last_delta, base_timestamp, max_timestamp
    cdef int timestamp_type
    cdef int64 *offset
    cdef int64 *micros
    cdef int *kind
    cdef octet_t *valid
    cdef int64 *header_start
    cdef int64 *header_end
    cdef int *headers_end


cdef class Scan:
    cdef object views
    cdef readonly int64 noted, headers, parsed, max_timestamp
    cdef readonly int refusal
    cdef bint is_keyed
    cdef int64 base_timestamp, earliest, latest, headers_max, room
    cdef int64 *wrong


@cython.locals(found=int64, position=int64, size=int64)
cpdef int64 frames(const octet_t[::1] data)

@cython.locals(source="const octet_t *", position=int64, size=int64, base_offset=int64,
               last_delta=int64)
cpdef int64 misplaced(bytes data, int64 stop, int64 first, int64 end) except -2

@cython.locals(wanted=int64, position=int64, size=int64, base_offset=int64, ends=int64,
               above=bint, below=bint)
cpdef int64 survey(const octet_t[::1] data, int64 count, int64 first, int64 last,
                   int64[:, ::1] table)

@cython.locals(batch=int64, position=int64, stop=int64, count=int64)
cpdef decode(const octet_t[::1] data, const int64[:, ::1] table, int64 batches, Rows rows,
             Binary keys, Binary values)

@cython.locals(row=int64)
cpdef decode_headers(const octet_t[::1] data, Rows rows, Binary names, Binary contents)

cpdef lengthen(bytearray data, Py_ssize_t size)

cpdef check(const octet_t[::1] data, int64 start, int64 stop, int64 count, Scan scan)

@cython.locals(scan=Scan)
cpdef int64 highest_timestamp(const octet_t[::1] data, int64 start, int64 stop, int64 count,
                              int64 base_timestamp, int64 earliest, int64 latest, bint is_keyed,
                              int64 headers_max)

@cython.locals(source="const octet_t *", stop=int64, end=int64)
cpdef int64 lz4_end(const octet_t[::1] data, int64 position, int64 trailer)

@cython.locals(refusal=int)
cpdef int find_time(const octet_t[::1] data, int64 start, int64 stop, int64 count,
                    int64 last_delta, int64 base_timestamp, int64 wanted, int64 least,
                    int64[::1] found)

cdef octet_t *_octets(octet_t[::1] view) noexcept
cdef int *_int32s(int[::1] view) noexcept
cdef int64 *_int64s(int64[::1] view) noexcept
cdef const octet_t *_inside(bytes data) except NULL
cdef const octet_t *_source(const octet_t[::1] view) noexcept

cdef void _copy(octet_t *target, int64 at, const octet_t *source, int64 start,
                       int64 size) noexcept nogil
@cython.locals(high=int64)
cdef int64 _signed32(const octet_t *data, int64 at) noexcept nogil
cdef int64 _signed64(const octet_t *data, int64 at) noexcept nogil
cdef int64 _unzigzag(uint64 raw) noexcept nogil
@cython.locals(octet=uint64)
cdef (int64, int64) _varint(const octet_t *source, int64 position, int64 end,
                            int bytes_max) noexcept nogil
@cython.locals(raw=uint64, octet=uint64, shift=int)
cdef (int64, int64) _long_varint(const octet_t *source, int64 position, int64 end) noexcept nogil
@cython.locals(size=int64, start=int64)
cdef (int64, int64) _piece(const octet_t *source, int64 position, int64 end) noexcept nogil
cdef void _append(Binary column, const octet_t *source, int64 start,
                         int64 size) noexcept nogil
cdef int64 _refuse(Rows rows, int why) noexcept nogil
@cython.locals(previous=int64, size=int64)
cdef bint _batch(const octet_t *source, int64 position, int64 stop, int64 count, Rows rows,
                 Binary keys, Binary values) noexcept nogil
@cython.locals(elapsed=int64, delta=int64, key_size=int64, key_start=int64, value_size=int64,
               value_start=int64, count=int64)
cdef int64 _record(const octet_t *source, int64 position, int64 end, int64 previous,
                          Rows rows, Binary keys, Binary values) noexcept nogil
cdef bint _is_sum(int64 one, int64 other) noexcept nogil
@cython.locals(timestamp=int64)
cdef void _keep(Rows rows, int64 delta, int64 elapsed, int64 position, int64 end,
                       int64 count) noexcept nogil
@cython.locals(position=int64, name_size=int64, name_start=int64, size=int64, start=int64)
cdef bint _headers(const octet_t *source, int64 row, Rows rows, Binary names,
                   Binary contents) noexcept nogil
@cython.locals(latest=int64, index=int64, end=int64, elapsed=int64, key_size=int64,
               timestamp=int64, base_timestamp=int64, is_keyed=bint, allowed_from=int64,
               allowed_to=int64)
cdef bint _check(const octet_t *source, int64 position, int64 stop, int64 count,
                 Scan scan) noexcept nogil
@cython.locals(size=int64, at=int64, end=int64, elapsed=int64, delta=int64, key=int64,
               key_size=int64, value=int64, value_size=int64, is_short=bint, is_positive=bint)
cdef (int64, int64, int64) _plain_record(const octet_t *source, int64 position, int64 stop,
                                         int64 index) noexcept nogil
@cython.locals(raw=int64)
cdef (int64, int64) _short_varint(const octet_t *source, int64 at) noexcept nogil
@cython.locals(size=int64, end=int64, elapsed=int64, delta=int64, refusal=int, key_size=int64,
               value_size=int64)
cdef (int64, int64, int64) _any_record(const octet_t *source, int64 position, int64 stop,
                                       int64 index, Scan scan) noexcept nogil
cdef bint _end_check(Scan scan, int64 parsed, int64 latest, int refusal) noexcept nogil
cdef int _check_place(Scan scan, int64 index, int64 delta, int64 elapsed) noexcept nogil
@cython.locals(count=int64, name_size=int64, size=int64)
cdef int64 _check_headers(const octet_t *source, int64 position, int64 end,
                          Scan scan) noexcept nogil
@cython.locals(fault=int)
cdef void _note(Scan scan, int64 index, int64 key_size, int64 timestamp) noexcept nogil
@cython.locals(low=int64, size=int64)
cdef int64 _lz4_end(const octet_t *source, int64 position, int64 stop,
                    int64 trailer) noexcept nogil
@cython.locals(previous=int64, size=int64, end=int64, elapsed=int64, delta=int64, timestamp=int64)
cdef int _find_time(const octet_t *source, int64 position, int64 stop, int64 count,
                    int64 last_delta, int64 base_timestamp, int64 wanted, int64 least,
                    int64 *found) noexcept nogil
