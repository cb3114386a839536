# The C types of `_codec_json_times.py`.

cimport cython

ctypedef unsigned char octet_t
ctypedef long long int64

cdef int _COLON, _PLUS, _MINUS, _POINT, _Z
cdef int64 _DAY_S, _UINT32


@cython.locals(row=int64, start=int64, end=int64)
cpdef parse(const octet_t[::1] data, int64[::1] cells, const octet_t[::1] valid, bint is_date,
            octet_t[::1] unusual)

@cython.locals(high=int64, low=int64, month=int64, day=int64, hour=int64, minute=int64,
               second=int64, micros=int64, days=int64)
cdef bint _time(const octet_t[::1] source, int64[::1] cells, int64 row, bint is_date,
                int64 position, int64 end) noexcept nogil
@cython.locals(scale=int64, start=int64, hour=int64, minute=int64, ahead=int64)
cdef bint _fraction(const octet_t[::1] source, int64[::1] cells, int64 row, int64 micros,
                    int64 position, int64 end) noexcept nogil
@cython.locals(value=int64, step=int64, octet=octet_t)
cdef int64 _digits(const octet_t[::1] source, int64 position, int64 count) noexcept nogil
cdef int64 _month_days(int64 year, int64 month) noexcept nogil
@cython.locals(era=int64, rest=int64, in_year=int64)
cdef int64 _days(int64 year, int64 month, int64 day) noexcept nogil
