// Prints digests of linear layers of integers, by format and width: those of one build of the kernels.
//   integer_digest ISA [FORMAT…]
// The lines must be those of tests/data/integer_digests.txt, which are made by the NumPy definition: matrices and rows
// here are those of tests/support/integer_digests.py.
//
// With KARAT_ONE_BUILD, the namespace of a build, it needs that build alone, and takes no ISA.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "contract/kernels.h"
#ifndef KARAT_ONE_BUILD
#include "runtime/isa.h"
#endif

namespace {

using namespace karat;

constexpr std::size_t kRows = 82, kRandomRows = 70, kColumns = 512, kTokens = 24, kMany = 517;
constexpr int kLimits[] = {0, 127, 32639, 8355710}, kBits[] = {0, 7, 15, 23};  // by Activations

// Number i of a seed.
std::uint32_t random(std::uint32_t seed, std::size_t i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b9 + seed * 0x85ebca6b;
    x = (x ^ x >> 16) * 0x21f0aaad;
    x = (x ^ x >> 15) * 0x735a2d97;
    return x ^ x >> 15;
}

// Bytes of a block at which 16-bit numbers begin: scales, and minimums.
std::vector<std::size_t> halves_of(Format format) {
    switch (format) {
        case Format::Q4_1:
        case Format::Q5_1:
        case Format::Q4_K:
        case Format::Q5_K: return {0, 2};
        case Format::Q2_K: return {80, 82};
        case Format::Q3_K: return {108};
        case Format::Q6_K: return {208};
        case Format::MXFP4: return {};
        default: return {0};
    }
}

struct alignas(64) Line { std::uint8_t bytes[64]; };
std::vector<Line> lines(std::size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

struct Packed {
    Matrix shape;
    std::vector<Line> memory;
};

// Blocks of any bytes; then rows of one byte and of two, of the lowest and the highest codes. Scales are small.
Packed matrix(Format format) {
    Matrix shape{format, kRows, kColumns, nullptr};
    const FormatInfo& info = shape.info();
    const std::size_t blocks = kRows * kColumns / info.block_columns, row_bytes = blocks / kRows * info.block_bytes;
    std::vector<std::uint8_t> stored(kRows * row_bytes);
    for (std::size_t i = 0; i < stored.size(); ++i) {
        const auto any = static_cast<std::uint8_t>(random(1, i) >> 11);
        const std::size_t row = i / row_bytes;
        const std::uint8_t high = format == Format::MXFP4 ? 0x77 : 0x7f;
        const std::uint8_t first = row % 2 ? 0x00 : 0x80, second = row % 2 ? 0xff : high;
        const bool choice = row < kRows - 4 ? any < 128 : row < kRows - 2;
        stored[i] = row < kRandomRows ? any : choice ? first : second;
    }
    std::uint32_t seed = 2;
    for (const std::size_t start : halves_of(format)) {
        for (std::size_t block = 0; block < blocks; ++block) {
            const std::uint32_t of = random(seed, block);
            const std::uint32_t half = (of & 0x8000) | ((8 + of % 3) << 10) | (of >> 20 & 1023);
            stored[block * info.block_bytes + start] = static_cast<std::uint8_t>(half);
            stored[block * info.block_bytes + start + 1] = static_cast<std::uint8_t>(half >> 8);
        }
        ++seed;
    }
    if (format == Format::MXFP4)  // exponents of scales
        for (std::size_t block = 0; block < blocks; ++block)
            stored[block * info.block_bytes] = static_cast<std::uint8_t>(120 + random(2, block) % 16);
    std::vector<Line> memory = lines(shape.packed_bytes() + kPackedSlack);
    shape.data = memory[0].bytes;
    pack_panels(shape, {stored.data(), row_bytes}, 0, shape.num_panels(), memory[0].bytes);
    return {shape, std::move(memory)};
}

// Column k of a row of digits that are all at an extreme.
float extreme(std::uint32_t of, std::size_t token, std::size_t k, int num_digits) {
    const int limit = kLimits[num_digits];
    if (k % 32 == 7) return static_cast<float>(limit);  // so that the power is 1
    if (token < 14) return static_cast<float>(token == 12 ? limit : -limit);
    int q = of & 1 ? 127 : -127;
    for (int digit = 1; digit < num_digits; ++digit) q = 256 * q + (of >> digit & 1 ? 127 : -128);
    return static_cast<float>(std::clamp(q, -limit, limit));
}

float activation(std::size_t token, std::size_t k, int num_digits) {
    const std::uint32_t of = random(11, token * kColumns + k);
    const float x = static_cast<float>(static_cast<std::int32_t>(of) >> 8) * 0x1p-20f;
    switch (token) {
        case 3:
            return std::ldexp(x, static_cast<int>(k) / 32 % 8 + 94 + kBits[num_digits]);  // powers up to the largest
        case 4: return std::ldexp(x, static_cast<int>(of % 40) - 20);                     // far apart within a block
        case 5: return k >= 64 && k < 256 ? 0 : x;
        case 6: return std::ldexp(static_cast<float>(of % 255) - 127, -149);    // subnormal
        case 7: return std::ldexp(x, static_cast<int>(k / 32 * 7 % 120) - 60);  // far apart between blocks
        case 8: return k == 300 ? std::numeric_limits<float>::quiet_NaN() : x;
        case 9: return k == 3 ? -std::numeric_limits<float>::infinity() : x;
        case 10: return k == 77 ? 3e38f : x;  // its power would be too large
        case 11: return std::ldexp(x, -100);  // at the smallest power
        default: return token < 12 ? x : extreme(of, token, k, num_digits);
    }
}

std::uint32_t bits(float x) {
    std::uint32_t all;
    std::memcpy(&all, &x, sizeof all);
    return x != x ? 0x7fc00000 : all;  // a NaN's sign and payload are nobody's promise
}

// Row i of x as row i of a layer of `each` rows, and as the only row of another, which `quantise` would write so.
void scatter(const IntegerKernels& kernels, Activations width, const std::vector<float>& x, std::size_t i,
             std::size_t each, std::uint8_t* out) {
    const std::size_t row_bytes = kernels.row_bytes(width, kColumns);
    std::vector<Line> alone = lines(row_bytes), want = lines(row_bytes);
    DigitsPlace places[] = {{alone[0].bytes, 1, 0}, {out, each, i}};
    kernels.quantise_row(width, x.data() + i * kColumns, kColumns, places, 2);
    kernels.quantise(width, x.data() + i * kColumns, 1, kColumns, 0, 1, want[0].bytes);
    CHECK(std::memcmp(alone[0].bytes, want[0].bytes, row_bytes) == 0);
}

// How a layer's results are asked for: by one call for all rows; in parts, by calls of half of the rows and one panel;
// in such parts too, with leaves that stay apart, and leaf by leaf as terms of sums: these are added here.
enum class Asked { at_once, in_parts, apart, as_terms };

// The layer's results [kTokens, kRows] of `each` rows at a time. Rows after kTokens are the first ones again.
std::vector<std::uint32_t> results(const IntegerKernels& kernels, const Matrix& weight, Activations width,
                                   const std::vector<std::uint32_t>& leaf_ends, std::size_t each, Asked asked) {
    const bool in_parts = asked != Asked::at_once, adds = asked == Asked::apart || asked == Asked::as_terms;
    std::vector<float> leaves(leaf_ends.size() * each * kRows), ones(each, 1.0f);
    std::vector<std::uint32_t> sums_of;  // the last row is a term of the first sum
    for (std::size_t row = 0; row < each; ++row) sums_of.push_back(static_cast<std::uint32_t>(each - 1 - row));
    const std::size_t row_bytes = kernels.row_bytes(width, kColumns);
    std::vector<float> x(each * kColumns), out(each * kRows);
    std::vector<Line> digits = lines(each * row_bytes + kDigitSlack), scratch = lines(kernels.scratch_bytes());
    std::vector<std::uint32_t> found;
    for (std::size_t first = 0; first < kTokens; first += each) {
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] = activation((first + i / kColumns) % kTokens, i % kColumns, static_cast<int>(width));
        const std::size_t part = in_parts && each > 1 ? each / 2 : each;
        for (std::size_t row = 0, end; row < each; row = end) {
            end = std::min(row + part, each);
            if (in_parts && each > 1)
                for (std::size_t i = row; i < end; ++i) scatter(kernels, width, x, i, each, digits[0].bytes);
            else kernels.quantise(width, x.data(), each, kColumns, row, end, digits[0].bytes);
        }
        const std::size_t panels = weight.num_panels(), at_once = in_parts ? 1 : panels;
        for (std::size_t row = 0, end; row < each; row = end) {
            end = std::min(row + part, each);
            LinearArgs args{.weight = &weight,
                            .x = nullptr,
                            .x_stride = 0,
                            .tokens = end - row,
                            .out = out.data() + row * kRows,
                            .out_stride = kRows,
                            .bias = nullptr,
                            .residual = nullptr,
                            .leaf_ends = leaf_ends.data(),
                            .num_leaves = leaf_ends.size(),
                            .activations = width,
                            .digits = digits[0].bytes,
                            .digits_rows = each,
                            .first_row = row};
            if (adds && row == 0) std::fill(leaves.begin(), leaves.end(), 0.0f);
            if (asked == Asked::apart) {
                args.out = leaves.data() + row * kRows;
                args.leaf_stride = each * kRows;
            }
            const auto multiply = [&] {
                for (std::size_t panel = 0; panel < panels; panel += at_once)
                    kernels.linear(args, panel, panel + at_once, reinterpret_cast<float*>(scratch.data()));
            };
            if (asked != Asked::as_terms) {
                multiply();
                continue;
            }
            args.num_leaves = 1;
            args.sums_of = sums_of.data() + row;
            args.weights = ones.data();
            for (std::size_t leaf = 0; leaf < leaf_ends.size(); ++leaf) {
                args.out = leaves.data() + leaf * each * kRows;
                args.first_column = leaf > 0 ? leaf_ends[leaf - 1] : 0;
                args.leaf_ends = &leaf_ends[leaf];
                multiply();
            }
        }
        if (adds) {
            for (std::size_t step = 1; step < leaf_ends.size(); step *= 2)
                for (std::size_t i = 0; i + step < leaf_ends.size(); i += 2 * step)
                    for (std::size_t at = i * out.size(); at < (i + 1) * out.size(); ++at)
                        leaves[at] = leaves[at] + leaves[at + step * out.size()];
            for (std::size_t i = 0; i < out.size(); ++i) {
                const std::size_t row = asked == Asked::apart ? i / kRows : sums_of[i / kRows];
                out[i] = leaves[row * kRows + i % kRows];
            }
        }
        for (const float number : out) found.push_back(bits(number));
    }
    return found;
}

// A sum that begins with 0 has no -0.
bool same_but_zeros(std::uint32_t a, std::uint32_t b) { return a == b || ((a | b) << 1) == 0; }

std::uint64_t digest(const IntegerKernels& kernels, const Matrix& weight, Activations width) {
    const std::size_t unit = weight.info().block_columns;
    std::vector<std::uint32_t> eight, odd;
    for (std::size_t leaf = 1; leaf <= 8; ++leaf)
        eight.push_back(static_cast<std::uint32_t>(leaf * (kColumns / unit) / 8 * unit));
    for (const std::size_t end : {32, 160, 416, 512}) odd.push_back(static_cast<std::uint32_t>(end / unit * unit));
    std::uint64_t found = 0xcbf29ce484222325;
    for (const std::vector<std::uint32_t>& leaf_ends : {std::vector<std::uint32_t>{kColumns}, eight, odd}) {
        const std::vector<std::uint32_t> all = results(kernels, weight, width, leaf_ends, kTokens, Asked::at_once);
        for (const std::size_t each : {1, 2, 3, 4, 6, 8, 24}) {
            CHECK(results(kernels, weight, width, leaf_ends, each, Asked::in_parts) == all);
            CHECK(results(kernels, weight, width, leaf_ends, each, Asked::apart) == all);
            const std::vector<std::uint32_t> terms = results(kernels, weight, width, leaf_ends, each, Asked::as_terms);
            for (std::size_t i = 0; i < all.size(); ++i) CHECK(same_but_zeros(terms[i], all[i]));
        }
        if (leaf_ends.size() == 1) {  // one token more than an unpacked chunk serves
            const std::vector<std::uint32_t> many = results(kernels, weight, width, leaf_ends, kMany, Asked::at_once);
            for (std::size_t i = 0; i < many.size(); ++i) CHECK(many[i] == all[i % all.size()]);
        }
        for (const std::uint32_t number : all) found = (found ^ number) * 0x100000001b3;
    }
    return found;
}

void print(const IntegerKernels& kernels, const std::set<std::string>& wanted) {
    std::map<std::string, Format> formats;  // in the order of names
    for (int i = 0; i < kNumFormats; ++i)
        if (const auto format = static_cast<Format>(i); Matrix{format, kRows, kColumns, nullptr}.in_blocks())
            formats[kFormats[i].name] = format;
    const std::pair<const char*, Activations> widths[] = {
        {"int8", Activations::int8}, {"int16", Activations::int16}, {"int24", Activations::int24}};
    for (const auto& [name, format] : formats) {
        if (!wanted.empty() && wanted.count(name) == 0) continue;
        const Packed weight = matrix(format);
        for (const auto& [width, activations] : widths)
            std::printf("%s %s %016llx\n", name.c_str(), width,
                        static_cast<unsigned long long>(digest(kernels, weight.shape, activations)));
    }
}

}  // namespace

#ifdef KARAT_ONE_BUILD
int main(int argc, char** argv) { print(KARAT_ONE_BUILD::integer_kernels, {argv + 1, argv + argc}); }
#else
int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: integer_digest ISA [FORMAT...]; here run:");
        for (const std::string& isa : supported_isas()) std::fprintf(stderr, " %s", isa.c_str());
        std::fprintf(stderr, "\n");
        return 2;
    }
    print(integer_kernels_for(argv[1]), {argv + 2, argv + argc});
}
#endif
