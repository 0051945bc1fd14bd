/* The bytes of a text that ends with a 0, without the 0; of a variable, such as a uint64_t; and none. */
#define OUTLAST_TEXT(text) outlast_bytes_of((text), strlen(text))
#define OUTLAST_VALUE(variable) outlast_bytes_of(&(variable), sizeof(variable))
#define OUTLAST_NOTHING outlast_bytes_of(NULL, 0)

/* Nanoseconds, of seconds. */
#define OUTLAST_SECONDS(seconds) ((uint64_t)(seconds) * 1000000000u)

/* Makes the bytes of an argument. */
static inline outlast_bytes outlast_bytes_of(const void *data, size_t len) {
    outlast_bytes bytes;
    bytes.data = data;
    bytes.len = len;
    return bytes;
}
