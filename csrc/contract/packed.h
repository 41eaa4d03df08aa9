// Matrices as the kernels read them: a SIMD lane owns a row.
//
// Rows are taken in groups of 16 (the last one filled up with zeros) and groups in panels of four; groups that are left
// over are panels of one. A panel holds all columns of its rows, block by block. A block is what the format stores for
// `block_columns` columns of one row, transposed over the 16 rows of each group:
//   the 16-bit scale, in formats whose blocks are no multiple of 4 bytes    [group][row] 16 bits
//   then each 32-bit word of the block in turn                              [word][group][row] 32 bits
// So the packed matrix has the bytes of the stored one (and those of rows that fill up a group), and any format of ggml
// is packed by one routine. In Q2_K and Q3_K the codes of a sub-block, or the bits of a code, are spread over words, in
// Q5_0 and Q5_1 fifth bits lie in other bytes than their codes: those bits are arranged anew (packed.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace karat {

inline constexpr std::size_t kGroupRows = 16;
inline constexpr std::size_t kPanelGroups = 4;

// Kernels read so many bytes beyond a packed matrix at most (and make nothing of them): they must be there.
inline constexpr std::size_t kPackedSlack = 3;

enum class Format : int { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs };
inline constexpr int kNumFormats = 15;

struct FormatInfo {
    const char* name;
    std::size_t block_columns;
    std::size_t block_bytes;
    std::size_t scale_at;      // where a block's 16-bit scale lies, if block_bytes is no multiple of 4
    bool has_minimum = false;  // weight = scale * code + minimum
    bool by_nibbles = false;   // columns are not summed one by one (kernels.h)
};

inline constexpr FormatInfo kFormats[kNumFormats] = {
    {"F32", 1, 4, 0},
    {"F16", 1, 2, 0},
    {"BF16", 1, 2, 0},
    {"Q8_0", 32, 34, 0},
    {"Q4_0", 32, 18, 0},
    {"Q4_1", 32, 20, 0, true},
    {"Q5_0", 32, 22, 0},
    {"Q5_1", 32, 24, 0, true},
    {"Q2_K", 256, 84, 0, true, true},
    {"Q3_K", 256, 110, 108, false, true},
    {"Q4_K", 256, 144, 0, true},
    {"Q5_K", 256, 176, 0, true},
    {"Q6_K", 256, 210, 208},
    {"IQ4_NL", 32, 18, 0},
    {"IQ4_XS", 256, 136, 0},
};

struct Matrix {
    Format format;
    std::size_t rows, columns;
    const std::uint8_t* data;  // packed, 64-byte aligned

    // Not inline: this header is compiled for several instruction sets, and one copy of each function serves all.
    const FormatInfo& info() const;
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

// Where the rows of a stored matrix begin (each in one piece, blocks along it): `stride` bytes from one to the next, as
// of some columns of a wider one. Row i is the order[i]-th of them, if there is an order.
struct StoredRows {
    const std::uint8_t* data;
    std::size_t stride;
    const std::int64_t* order = nullptr;

    std::size_t at(std::size_t row) const;
};

// Packs panels first … last - 1 of a stored matrix into `packed`, the place of the whole packed matrix. Different
// panels may be packed by different threads.
void pack_panels(const Matrix& shape, const StoredRows& stored, std::size_t first_panel, std::size_t last_panel,
                 std::uint8_t* packed);

// The inverse: the matrix as it was stored, row after row, to be compared with the file.
void unpack(const Matrix& matrix, std::uint8_t* stored);

}  // namespace karat
