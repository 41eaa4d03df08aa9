// Matrices as the kernels read them: a SIMD lane owns a row.
//
// 16 rows are a group; the last group is filled up with rows of zeros. Four groups are a wide panel of 64 rows; groups
// that are left over are panels of 16 rows. Panels follow one another in memory, and a panel has the blocks of its rows
// in the order of columns. A block is what the format stores for `block_columns` columns of one row. It lies transposed
// over the rows of its panel, word by word:
//
//     wide panel, one block of 32 columns in Q4_0 (18 bytes a row)
//     byte 0             128              384              640              896              1152
//          | scales      | word 0         | word 1         | word 2         | word 3         | next block
//            64 x 2 bytes  64 x 4 bytes     64 x 4 bytes     64 x 4 bytes     64 x 4 bytes
//            row 0 ... 63  row 0 ... 63
//
//     panel of 16 rows, the same block
//     byte 0             32               96               160              224              288
//
// Only formats whose blocks are no multiple of 4 bytes have the scale apart: 16 bits, or the byte of MXFP4 (17 bytes a
// row). In the others it is in a word:
//
//     wide panel, one block of 32 columns in Q4_1 (20 bytes a row)
//     byte 0             256              512              768              1024             1280
//          | word 0      | word 1         | word 2         | word 3         | word 4         | next block
//            scale, minimum
//
// So the packed matrix has the bytes of the stored one, and those of the rows that fill up a group; one routine packs
// any format of ggml. Four formats have bits of a block rearranged besides (packed.cpp): Q2_K and Q3_K, whose codes of
// a sub-block are spread over words, and Q5_0 and Q5_1, whose fifth bits lie in other bytes than their codes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

inline constexpr std::size_t kGroupRows = 16;
inline constexpr std::size_t kPanelGroups = 4;

// Kernels may read up to 3 bytes past the end of a packed matrix; the values are not used.
inline constexpr std::size_t kPackedSlack = 3;

// The stored formats that have kernels, each once: its name in GGUF, which is also that of the struct by which kernels
// read it (formats.h). The enum, the table and the switches between kernels (linear.h) are made of these lists.
// X(name, bytes of a number)
#define KARAT_FLOAT_FORMATS(X) X(F32, 4) X(F16, 2) X(BF16, 2)
// Floats that share a scale, which are multiplied as floats. X(name, columns of a block, bytes of a block, 0)
#define KARAT_SCALED_FORMATS(X) X(E4M3, 128, 132, 0)
// X(name, columns of a block, bytes of a block, where its scale lies if those are no multiple of 4)
#define KARAT_BLOCK_FORMATS(X) \
    X(Q8_0, 32, 34, 0)         \
    X(Q4_0, 32, 18, 0)         \
    X(Q4_1, 32, 20, 0)         \
    X(Q5_0, 32, 22, 0)         \
    X(Q5_1, 32, 24, 0)         \
    X(Q2_K, 256, 84, 0)        \
    X(Q3_K, 256, 110, 108)     \
    X(Q4_K, 256, 144, 0)       \
    X(Q5_K, 256, 176, 0)       \
    X(Q6_K, 256, 210, 208)     \
    X(IQ4_NL, 32, 18, 0)       \
    X(IQ4_XS, 256, 136, 0)     \
    X(MXFP4, 32, 17, 0)

#define KARAT_NAME(name, ...) name,
enum class Format : int {
    KARAT_FLOAT_FORMATS(KARAT_NAME) KARAT_SCALED_FORMATS(KARAT_NAME) KARAT_BLOCK_FORMATS(KARAT_NAME)
};
#undef KARAT_NAME

struct FormatInfo {
    const char* name;
    std::size_t block_columns;
    std::size_t block_bytes;
    std::size_t scale_at;
};

#define KARAT_FLOATS(name, bytes) {#name, 1, bytes, 0},
#define KARAT_BLOCKS(name, ...) {#name, __VA_ARGS__},
#define KARAT_ONE(...) +1
inline constexpr FormatInfo kFormats[] = {KARAT_FLOAT_FORMATS(KARAT_FLOATS) KARAT_SCALED_FORMATS(KARAT_BLOCKS)
                                              KARAT_BLOCK_FORMATS(KARAT_BLOCKS)};
inline constexpr int kNumFormats = sizeof kFormats / sizeof kFormats[0];
inline constexpr int kNumFloatFormats = 0 KARAT_FLOAT_FORMATS(KARAT_ONE) KARAT_SCALED_FORMATS(KARAT_ONE);
#undef KARAT_FLOATS
#undef KARAT_BLOCKS
#undef KARAT_ONE

struct Matrix {
    Format format;
    std::size_t rows, columns;
    const std::uint8_t* data;  // packed, 64-byte aligned

    // Not inline: this header is compiled for several instruction sets, and one copy of each function serves all.
    const FormatInfo& info() const;
    bool in_blocks() const;  // of integers, which integers are multiplied with; not floats, with or without a scale
    std::size_t num_groups() const;
    std::size_t num_wide() const;  // panels of four groups
    std::size_t num_panels() const;
    std::size_t group_bytes() const;
    std::size_t packed_bytes() const;
    std::size_t first_group(std::size_t panel) const;
    std::size_t panel_groups(std::size_t panel) const;
    std::size_t panel_of_group(std::size_t group) const;
    const std::uint8_t* panel(std::size_t panel) const;
};

// Rows of a stored matrix. A row is one run of blocks; rows begin `stride` bytes apart, more than their length if they
// are some columns of a wider matrix. With an order, row i of the matrix is stored row order[i].
struct StoredRows {
    const std::uint8_t* data;
    std::size_t stride;
    const std::int64_t* order = nullptr;

    std::size_t at(std::size_t row) const;
};

// Packs panels first … last - 1 of a stored matrix. `packed` is the beginning of the whole packed matrix. Threads may
// pack different panels at the same time.
void pack_panels(const Matrix& shape, const StoredRows& stored, std::size_t first_panel, std::size_t last_panel,
                 std::uint8_t* packed);

// The inverse: writes the matrix as it was stored, row after row, so that it can be compared with the file.
void unpack(const Matrix& matrix, std::uint8_t* stored);

}  // namespace karat
