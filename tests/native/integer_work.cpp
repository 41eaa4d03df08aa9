// Computes one linear layer of integers again and again, for counting its instructions (tools/count_instructions).
//   integer_work ISA FORMAT WIDTH TOKENS TIMES
// WIDTH is int8, int16 or int24. All numbers are zeros: no instruction depends on them.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "contract/kernels.h"
#include "runtime/isa.h"

namespace {

using namespace karat;

constexpr std::size_t kRows = 256, kColumns = 1024;

struct alignas(64) Line { std::uint8_t bytes[64]; };
std::vector<Line> lines(std::size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

Format format_of(const std::string& name) {
    int format = 0;
    while (format < kNumFormats && kFormats[format].name != name) ++format;
    CHECK(format < kNumFormats);
    return static_cast<Format>(format);
}

}  // namespace

int main(int argc, char** argv) {
    CHECK(argc == 6);
    const IntegerKernels& kernels = integer_kernels_for(argv[1]);
    Matrix weight{format_of(argv[2]), kRows, kColumns, nullptr};
    const std::string width = argv[3];
    const Activations activations = width == "int8"    ? Activations::int8
                                    : width == "int16" ? Activations::int16
                                                       : Activations::int24;
    const std::size_t tokens = std::strtoul(argv[4], nullptr, 10), times = std::strtoul(argv[5], nullptr, 10);

    std::vector<Line> packed = lines(weight.packed_bytes() + kPackedSlack), scratch = lines(kernels.scratch_bytes());
    std::vector<Line> digits = lines(tokens * kernels.row_bytes(activations, kColumns) + kDigitSlack);
    std::vector<float> x(tokens * kColumns), out(tokens * kRows);
    weight.data = packed[0].bytes;
    kernels.quantise(activations, x.data(), tokens, kColumns, 0, tokens, digits[0].bytes);
    const auto end = static_cast<std::uint32_t>(kColumns);
    const LinearArgs args{.weight = &weight,
                          .x = nullptr,
                          .x_stride = 0,
                          .tokens = tokens,
                          .out = out.data(),
                          .out_stride = kRows,
                          .bias = nullptr,
                          .residual = nullptr,
                          .leaf_ends = &end,
                          .num_leaves = 1,
                          .activations = activations,
                          .digits = digits[0].bytes,
                          .digits_rows = tokens,
                          .first_row = 0};
    for (std::size_t i = 0; i < times; ++i)
        kernels.linear(args, 0, weight.num_panels(), reinterpret_cast<float*>(scratch.data()));
}
