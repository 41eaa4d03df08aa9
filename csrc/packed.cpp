#include "packed.h"

#include <cstring>

namespace karat {

const FormatInfo& Matrix::info() const { return kFormats[static_cast<int>(format)]; }
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

namespace {

// Where the parts of panels lie in both layouts: calls copy(packed, stored, bytes) for each.
template <class Copy>
void walk(const Matrix& shape, const StoredRows& stored, std::size_t first_panel, std::size_t last_panel,
          const Copy& copy) {
    const FormatInfo& info = shape.info();
    const std::size_t num_blocks = shape.columns / info.block_columns;
    const bool has_scale = info.block_bytes % 4 != 0;
    const std::size_t num_words = info.block_bytes / 4;
    // Words begin after a scale that is stored first, else with the block.
    const std::size_t words_at = has_scale && info.scale_at == 0 ? 2 : 0;
    for (std::size_t panel = first_panel; panel < last_panel; ++panel) {
        const std::size_t groups = shape.panel_groups(panel), first_row = shape.first_group(panel) * kGroupRows;
        std::size_t out = shape.first_group(panel) * shape.group_bytes();
        const std::size_t lanes = groups * kGroupRows;
        const std::size_t real = shape.rows - first_row < lanes ? shape.rows - first_row : lanes;
        std::size_t at[kPanelGroups * kGroupRows];  // the rows
        for (std::size_t lane = 0; lane < real; ++lane) at[lane] = stored.at(first_row + lane);
        for (std::size_t block = 0, in = 0; block < num_blocks; ++block, in += info.block_bytes) {
            if (has_scale) {
                for (std::size_t lane = 0; lane < real; ++lane) copy(out + 2 * lane, at[lane] + in + info.scale_at, 2);
                out += 2 * lanes;
            }
            const std::size_t words = in + words_at;
            for (std::size_t word = 0; word < num_words; ++word, out += 4 * lanes)
                for (std::size_t lane = 0; lane < real; ++lane) copy(out + 4 * lane, at[lane] + words + 4 * word, 4);
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
    walk(shape, stored, first_panel, last_panel, [=](std::size_t to, std::size_t from, std::size_t bytes) {
        bytes == 2 ? std::memcpy(packed + to, stored.data + from, 2) : std::memcpy(packed + to, stored.data + from, 4);
    });
}

void unpack(const Matrix& matrix, std::uint8_t* stored) {
    const StoredRows rows{stored, matrix.columns / matrix.info().block_columns * matrix.info().block_bytes};
    walk(matrix, rows, 0, matrix.num_panels(), [&](std::size_t from, std::size_t to, std::size_t bytes) {
        std::memcpy(stored + to, matrix.data + from, bytes);
    });
}

}  // namespace karat
