# The C types of `_codec_json.py`. Whatever is `nogil` here cannot touch a Python object by mistake.

cimport cython
from libc.stdlib cimport strtod
from libc.string cimport memcpy

ctypedef unsigned char octet_t
ctypedef long long int64

cdef int _INTEGER, _DOUBLE, _STRING, _JSON
cdef int _FIELD_NUMBERS, _POWERS_EXACT, _SEEN, _SEEN_NULL, _DEPTH_MAX
cdef int64 _EXPONENT_MAX, _MANTISSA_EXACT, _MANTISSA_MAX, _UINT32
cdef int _QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST
cdef int _PLUS, _MINUS, _POINT


cdef class Plan:
    cdef object views
    cdef readonly int64 rows, count
    cdef bint text
    cdef const octet_t *data
    cdef const int64 *fields
    cdef const octet_t *names
    cdef const double *powers
    cdef int64 *cells
    cdef double *doubles
    cdef octet_t *valid


@cython.locals(row=int64, field=int64, found=int64)
cpdef int64 decode(Plan plan, const int[::1] ends, octet_t[::1] unusual)

@cython.locals(row=int64, cell=int64, size=int64, length=int64, target=cython.p_uchar)
cpdef gather(Plan plan, int64 field, octet_t[::1] out, int[::1] ends)

cdef octet_t *_octets(octet_t[::1] view) noexcept
cdef int64 *_int64s(int64[::1] view) noexcept
cdef const int64 *_numbers(const int64[::1] view) noexcept
cdef double *_doubles(double[::1] view) noexcept
cdef const double *_powers(const double[::1] view) noexcept
cdef const octet_t *_source(const octet_t[::1] view) noexcept

cdef void _copy(octet_t *target, int64 at, const octet_t *source, int64 start,
                int64 size) noexcept nogil
@cython.locals(expected=int64, start=int64, close=int64, field=int64)
cdef bint _object(Plan plan, int64 row, int64 position, int64 end) noexcept nogil
cdef int64 _space(const octet_t *source, int64 position, int64 end) noexcept nogil
cdef int64 _token(const octet_t *source, int64 position, int64 end, int wanted) noexcept nogil
@cython.locals(octet=octet_t)
cdef int64 _string(Plan plan, int64 position, int64 end) noexcept nogil
@cython.locals(step=int64, field=int64, name=int64, position=int64)
cdef int64 _field(Plan plan, int64 start, int64 end, int64 expected) noexcept nogil
@cython.locals(kind=int64, cell=int64, close=int64)
cdef int64 _cell(Plan plan, int64 field, int64 row, int64 position, int64 end) noexcept nogil
@cython.locals(first=octet_t, second=octet_t, third=octet_t, fourth=octet_t)
cdef int64 _literal(const octet_t *source, int64 position, int64 end) noexcept nogil
@cython.locals(mantissa=int64, exponent=int64, is_long=bint, whole=int64, start=int64, shift=int64)
cdef (int64, int64, int64, int64) _number(const octet_t *source, int64 position,
                                          int64 end) noexcept nogil
@cython.locals(shift=int64, negative=bint, start=int64)
cdef (int64, int64) _exponent(const octet_t *source, int64 position, int64 end) noexcept nogil
@cython.locals(mantissa=int64, whole=int64, after=int64, value=int64, _=int64)
cdef int64 _integer(Plan plan, int64 field, int64 cell, int64 position, int64 end) noexcept nogil
@cython.locals(mantissa=int64, exponent=int64, whole=int64, after=int64, value=double)
cdef int64 _double(Plan plan, int64 cell, int64 position, int64 end) noexcept nogil
@cython.locals(stopped=cython.p_char, first=cython.p_char)
cdef int64 _parsed(Plan plan, int64 cell, int64 start, int64 after) noexcept nogil
@cython.locals(depth=int, lists=int64, octet=octet_t)
cdef int64 _skip(Plan plan, int64 position, int64 end) noexcept nogil
@cython.locals(close=int64)
cdef int64 _inner(Plan plan, int64 position, int64 end, int64 lists) noexcept nogil
@cython.locals(octet=octet_t, after=int64, close=int64, _=int64)
cdef int64 _scalar(Plan plan, int64 position, int64 end) noexcept nogil
