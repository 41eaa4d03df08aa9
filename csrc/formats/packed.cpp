#include "contract/packed.h"

#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace karat {

const FormatInfo& Matrix::info() const { return kFormats[static_cast<int>(format)]; }
bool Matrix::in_blocks() const { return static_cast<int>(format) >= kNumFloatFormats; }
std::size_t Matrix::num_groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
std::size_t Matrix::num_wide() const { return num_groups() / kPanelGroups; }
std::size_t Matrix::num_panels() const { return num_wide() + num_groups() % kPanelGroups; }
std::size_t Matrix::group_bytes() const { return columns / info().block_columns * info().block_bytes * kGroupRows; }
std::size_t Matrix::packed_bytes() const { return num_groups() * group_bytes(); }
std::size_t Matrix::first_group(std::size_t panel) const {
    return panel < num_wide() ? panel * kPanelGroups : num_wide() * kPanelGroups + (panel - num_wide());
}
std::size_t Matrix::panel_groups(std::size_t panel) const { return panel < num_wide() ? kPanelGroups : 1; }
std::size_t Matrix::panel_of_group(std::size_t group) const {
    const std::size_t wide = num_wide();
    return group < wide * kPanelGroups ? group / kPanelGroups : wide + (group - wide * kPanelGroups);
}
const std::uint8_t* Matrix::panel(std::size_t panel) const { return data + first_group(panel) * group_bytes(); }
std::size_t StoredRows::at(std::size_t row) const {
    return (order ? static_cast<std::size_t>(order[row]) : row) * stride;
}

namespace {

// Calls copy(packed offset, stored offset, bytes) for each piece of some panels.
template <class Copy>
void for_each_piece(const Matrix& shape, const StoredRows& stored, std::size_t first_panel, std::size_t last_panel,
                    const Copy& copy) {
    const FormatInfo& info = shape.info();
    const std::size_t num_blocks = shape.columns / info.block_columns;
    const std::size_t scale_bytes = info.block_bytes % 4, num_words = info.block_bytes / 4;
    // Words begin after a scale that is stored first, else with the block.
    const std::size_t words_at = info.scale_at == 0 ? scale_bytes : 0;
    for (std::size_t panel = first_panel; panel < last_panel; ++panel) {
        const std::size_t groups = shape.panel_groups(panel), first_row = shape.first_group(panel) * kGroupRows;
        std::size_t out = shape.first_group(panel) * shape.group_bytes();
        const std::size_t lanes = groups * kGroupRows;
        const std::size_t real = shape.rows - first_row < lanes ? shape.rows - first_row : lanes;
        std::size_t at[kPanelGroups * kGroupRows];  // the rows
        for (std::size_t lane = 0; lane < real; ++lane) at[lane] = stored.at(first_row + lane);
        for (std::size_t block = 0, in = 0; block < num_blocks; ++block, in += info.block_bytes) {
            if (scale_bytes > 0)
                for (std::size_t lane = 0; lane < real; ++lane)
                    copy(out + scale_bytes * lane, at[lane] + in + info.scale_at, scale_bytes);
            out += scale_bytes * lanes;
            const std::size_t words = in + words_at;
            for (std::size_t word = 0; word < num_words; ++word, out += 4 * lanes)
                for (std::size_t lane = 0; lane < real; ++lane) copy(out + 4 * lane, at[lane] + words + 4 * word, 4);
        }
    }
}

// Bits of a word of a stored block, and where a packed one has them: `left` further up, or down.
struct Move {
    std::size_t from, to;
    int left;
    std::uint32_t bits;  // as stored
};

constexpr Move move_bytes(int from, int from_bit, int to, int to_bit, int width) {  // the same bits of all four bytes
    return {static_cast<std::size_t>(from), static_cast<std::size_t>(to), to_bit - from_bit,
            (((1u << width) - 1) << from_bit) * 0x01010101u};
}

// Q5_0 and Q5_1: fifth bits, one word, lie in the bytes that their codes have in the words of nibbles.
template <int kWord>
constexpr auto kMovesQ5 = [] {
    std::array<Move, 32> moves{};
    for (int c = 0; c < 8; ++c)
        for (int j = 0; j < 4; ++j) moves[4 * c + j] = {kWord, kWord, 8 * j + c - (4 * c + j), 1u << (4 * c + j)};
    return moves;
}();

// Q2_K: the codes of a sub-block, which are a quarter of each of four words, become one word.
constexpr auto kMovesQ2K = [] {
    std::array<Move, 64> moves{};
    for (int sub = 0, i = 0; sub < 16; ++sub)
        for (int c = 0; c < 4; ++c)
            moves[i++] = move_bytes(4 + 8 * (sub / 8) + 4 * (sub % 2) + c, sub % 8 / 2 * 2, 4 + sub, 2 * c, 2);
    return moves;
}();

// Q3_K: those of two sub-blocks become three words: low bits of the first, of the second, third bits of both.
constexpr auto kMovesQ3K = [] {
    std::array<Move, 128> moves{};
    for (int sub = 0, i = 0; sub < 16; ++sub)
        for (int c = 0; c < 4; ++c) {
            const int part = sub % 2, first = sub / 2 * 3;
            moves[i++] = move_bytes(8 + 8 * (sub / 8) + 4 * part + c, sub % 8 / 2 * 2, first + part, 2 * c, 2);
            moves[i++] = move_bytes(4 * part + c, sub / 2, first + 2, 4 * part + c, 1);
        }
    return moves;
}();

// How the words of a block are arranged, if not as they are stored: all of `words` from `first` on.
struct Arrangement {
    std::span<const Move> moves;
    std::size_t first = 0, words = 0;
};
constexpr std::size_t kMostWords = 24;

Arrangement arrangement_of(Format format) {
    if (format == Format::Q5_0) return {kMovesQ5<0>, 0, 1};
    if (format == Format::Q5_1) return {kMovesQ5<1>, 1, 1};
    if (format == Format::Q2_K) return {kMovesQ2K, 4, 16};
    if (format == Format::Q3_K) return {kMovesQ3K, 0, 24};
    return {};
}

// Arranges the words of packed panels' blocks, or puts them `back`.
void arrange(const Matrix& shape, std::size_t first_panel, std::size_t last_panel, std::uint8_t* packed, bool back) {
    const Arrangement of_block = arrangement_of(shape.format);
    if (of_block.moves.empty()) return;
    const std::size_t block_bytes = shape.info().block_bytes, num_blocks = shape.columns / shape.info().block_columns;
    for (std::size_t panel = first_panel; panel < last_panel; ++panel) {
        const std::size_t lanes = shape.panel_groups(panel) * kGroupRows;
        std::uint8_t* block = packed + shape.first_group(panel) * shape.group_bytes();
        for (std::size_t i = 0; i < num_blocks; ++i, block += block_bytes * lanes) {
            std::uint32_t before[kMostWords * kPanelGroups * kGroupRows];
            std::uint32_t after[kMostWords * kPanelGroups * kGroupRows] = {};
            std::uint8_t* const words = block + (block_bytes % 4 + 4 * of_block.first) * lanes;
            const std::size_t bytes = 4 * of_block.words * lanes;
            std::memcpy(before, words, bytes);
            for (const Move& move : of_block.moves) {
                const std::size_t from = (move.from - of_block.first) * lanes, to = (move.to - of_block.first) * lanes;
                const int right = move.left < 0 ? -move.left : 0;  // one of the two is 0
                const int left = move.left > 0 ? move.left : 0;
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    if (back) after[from + lane] |= before[to + lane] << right >> left & move.bits;
                    else after[to + lane] |= (before[from + lane] & move.bits) << left >> right;
            }
            std::memcpy(words, after, bytes);
        }
    }
}

}  // namespace

void pack_panels(const Matrix& shape, const StoredRows& stored, std::size_t first_panel, std::size_t last_panel,
                 std::uint8_t* packed) {
    for (std::size_t panel = first_panel; panel < last_panel; ++panel) {
        const std::size_t end_row = (shape.first_group(panel) + shape.panel_groups(panel)) * kGroupRows;
        if (end_row > shape.rows)
            std::memset(packed + shape.first_group(panel) * shape.group_bytes(), 0,
                        shape.panel_groups(panel) * shape.group_bytes());
    }
    for_each_piece(shape, stored, first_panel, last_panel, [=](std::size_t to, std::size_t from, std::size_t bytes) {
        bytes == 2 ? std::memcpy(packed + to, stored.data + from, 2) : std::memcpy(packed + to, stored.data + from, 4);
    });
    arrange(shape, first_panel, last_panel, packed, false);
}

void unpack(const Matrix& matrix, std::uint8_t* stored) {
    const StoredRows rows{stored, matrix.columns / matrix.info().block_columns * matrix.info().block_bytes};
    std::vector<std::uint8_t> plain(matrix.data, matrix.data + matrix.packed_bytes());
    arrange(matrix, 0, matrix.num_panels(), plain.data(), true);
    for_each_piece(matrix, rows, 0, matrix.num_panels(), [&](std::size_t from, std::size_t to, std::size_t bytes) {
        std::memcpy(stored + to, plain.data() + from, bytes);
    });
}

}  // namespace karat
