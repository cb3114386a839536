# The C types of `_codec_encode.py`.

cimport cython
from cpython.bytearray cimport PyByteArray_AsString
from cpython.bytes cimport PyBytes_AsString
from libc.string cimport memcpy

ctypedef unsigned char octet_t
ctypedef long long int64
ctypedef unsigned long long uint64


cdef class Pieces:
    cdef object views
    cdef const octet_t *data
    cdef const int *starts
    cdef const int *sizes


@cython.locals(row=int64, position=int64)
cpdef int64 encode(int64 start, int64 stop, const int64[::1] timestamps, Pieces keys,
                   Pieces values, const int[::1] headers_end, Pieces names, Pieces contents,
                   octet_t[::1] output)

@cython.locals(total=int64, delta=int64, size=int64)
cpdef int64 records_size(list records, int64 base_timestamp) except -1
@cython.locals(out="octet_t *", position=int64, end=int64, delta=int64, elapsed=int64, size=int64)
cpdef put_records(list records, int64 base_timestamp, bytearray output)
@cython.locals(size=int64, elapsed=int64)
cdef int64 _record_size(record, int64 delta, int64 base_timestamp) except -1
@cython.locals(size=int64)
cdef int64 _bytes_size(value) except -1
@cython.locals(size=int64)
cdef int64 _put_bytes(octet_t *out, int64 position, int64 end, value) except -1
cdef int64 _put_number(octet_t *out, int64 position, int64 end, int64 value) except -1
cdef octet_t *_room(bytearray output) except NULL

cdef octet_t *_octets(octet_t[::1] view) noexcept
cdef const octet_t *_source(const octet_t[::1] view) noexcept
cdef const int *_numbers(const int[::1] view) noexcept

cdef void _copy(octet_t *target, int64 at, const octet_t *source, int64 start,
                       int64 size) noexcept nogil
cdef uint64 _zigzag(int64 value) noexcept nogil
@cython.locals(raw=uint64, size=int64)
cdef int64 _varint_size(int64 value) noexcept nogil
@cython.locals(raw=uint64)
cdef int64 _put_varint(octet_t *out, int64 position, int64 value) noexcept nogil
@cython.locals(size=int64)
cdef int64 _field_size(Pieces column, int64 row) noexcept nogil
@cython.locals(size=int64)
cdef int64 _put_field(octet_t *out, int64 position, Pieces column, int64 row) noexcept nogil
@cython.locals(size=int64, index=int64)
cdef int64 _put_record(octet_t *out, int64 position, int64 row, int64 elapsed, int64 delta,
                       Pieces keys, Pieces values, int64 header, int64 headers_end, Pieces names,
                       Pieces contents) noexcept nogil
