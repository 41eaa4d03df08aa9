#include "amx_emulator.h"

#include <ucontext.h>
#include <csignal>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "contract/kernels.h"
#include "runtime/tiles.h"

namespace emulated {
namespace {

thread_local State tiles;
thread_local int handlers = 0;  // of signals, in which this thread is
thread_local std::size_t since_signal = 0;
std::atomic<std::size_t> executed{0}, between_signals{0};
std::atomic<int> signal_to_raise{0};
bool has_its_own;

[[noreturn]] void refuse(const char* what) {
    std::fprintf(stderr, "an instruction on tiles that a processor refuses: %s\n", what);
    std::_Exit(1);
}

void require(bool holds, const char* what) {
    if (!holds) refuse(what);
}

// Numbers that are subnormal are 0 for a product of tiles, and so are sums.
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

template <class Bits>
float number(const std::uint8_t* at) {
    Bits first;
    std::memcpy(&first, at, sizeof first);
    const std::uint32_t bits = static_cast<std::uint32_t>(first) << (32 - 8 * sizeof first);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flushed(value);
}

// ---- operations -----------------------------------------------------------------------------------------------------

void release() { tiles = {}; }

void configure(const std::uint8_t* from) {
    require(from[0] <= 1, "its palette");
    release();
    if (from[0] == 0) return;
    for (int i = 1; i < 16; ++i) require(from[i] == 0, "a first row, or what is reserved");
    for (int i = 0; i < 16; ++i) {
        std::uint16_t row_bytes;
        std::memcpy(&row_bytes, from + 16 + 2 * i, sizeof row_bytes);
        const std::uint8_t rows = from[48 + i];
        require(row_bytes <= kRowBytes && rows <= kTileRows && (row_bytes == 0) == (rows == 0), "a tile's shape");
        require(i < kTiles || rows == 0, "a ninth tile");
        if (i >= kTiles) continue;
        tiles.rows[i] = rows;
        tiles.row_bytes[i] = static_cast<std::uint8_t>(row_bytes);
    }
    tiles.configured = true;
}

void require_shape(int tile) {
    require(tiles.configured && tile < kTiles && tiles.rows[tile] > 0, "a tile that is not configured");
}

void zero(int tile) {
    require_shape(tile);
    std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

void load(int tile, const std::uint8_t* from, std::int64_t stride) {
    zero(tile);
    for (int row = 0; row < tiles.rows[tile]; ++row)
        std::memcpy(tiles.data[tile][row], from + row * stride, tiles.row_bytes[tile]);
}

void store(int tile, std::uint8_t* to, std::int64_t stride) {
    require_shape(tile);
    for (int row = 0; row < tiles.rows[tile]; ++row)
        std::memcpy(to + row * stride, tiles.data[tile][row], tiles.row_bytes[tile]);
}

// to += a * b, of bf16: even columns and odd ones by themselves, as a processor adds them.
void multiply(int to, int a, int b) {
    for (const int tile : {to, a, b}) require_shape(tile);
    require(to != a && to != b && a != b, "a product of a tile by itself");
    require(tiles.rows[a] == tiles.rows[to] && tiles.row_bytes[a] == 4 * tiles.rows[b] &&
                tiles.row_bytes[b] == tiles.row_bytes[to],
            "a product of shapes that do not fit");
    constexpr int kMost = kRowBytes / 4;
    const int columns = tiles.row_bytes[to] / 4;
    float factors[kTileRows][2][kMost];
    for (int pair = 0; pair < tiles.rows[b]; ++pair)
        for (int odd = 0; odd < 2; ++odd)
            for (int column = 0; column < columns; ++column)
                factors[pair][odd][column] = number<std::uint16_t>(tiles.data[b][pair] + 4 * column + 2 * odd);
    for (int row = 0; row < tiles.rows[to]; ++row) {
        float sums[2][kMost] = {};
        for (int pair = 0; pair < tiles.rows[b]; ++pair)
            for (int odd = 0; odd < 2; ++odd) {
                const float x = number<std::uint16_t>(tiles.data[a][row] + 4 * pair + 2 * odd);
                for (int column = 0; column < columns; ++column)
                    sums[odd][column] = flushed(std::fma(x, factors[pair][odd][column], sums[odd][column]));
            }
        for (int column = 0; column < columns; ++column) {
            std::uint8_t* const at = tiles.data[to][row] + 4 * column;
            const float sum = flushed(number<std::uint32_t>(at) + flushed(sums[0][column] + sums[1][column]));
            std::memcpy(at, &sum, sizeof sum);
        }
    }
}

// ---- instructions ---------------------------------------------------------------------------------------------------

// Of three bytes of prefix, VEX.128.0F38.W0: what comes behind them.
class Instruction {
public:
    Instruction(const ucontext_t& context, const std::uint8_t* code) : registers_(context.uc_mcontext.gregs), p_(code) {
        known_ = p_[0] == 0xc4 && (p_[1] & 31) == 2 && (p_[2] & 0x84) == 0;
        if (!known_) return;
        not_r_ = p_[1] >> 7 & 1, not_x_ = p_[1] >> 6 & 1, not_b_ = p_[1] >> 5 & 1;
        third = ~(p_[2] >> 3) & 15;
        prefix = p_[2] & 3;  // none, 66, F3, F2
        opcode = p_[3];
        is_register = p_[4] >> 6 == 3;
        first = (p_[4] >> 3 & 7) | (not_r_ ? 0 : 8);
        second = (p_[4] & 7) | (not_b_ ? 0 : 8);
        p_ += 5;
        if (!is_register) read_address(code[4]);
    }

    bool known() const { return known_; }
    const std::uint8_t* end() const { return p_; }
    int opcode = 0, prefix = 0, first = 0, second = 0, third = 0;
    bool is_register = false;
    std::uint8_t* address = nullptr;  // base and displacement, for a whole operand also the index
    std::int64_t stride = 0;          // the index

private:
    const greg_t* registers_;
    const std::uint8_t* p_;
    bool known_ = false;
    int not_r_ = 0, not_x_ = 0, not_b_ = 0;

    std::int64_t value_of(int number) const {
        constexpr int kAt[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return registers_[kAt[number]];
    }

    void read_address(std::uint8_t modrm) {
        const int mode = modrm >> 6;
        bool has_base = true;
        int base = second;
        if ((modrm & 7) == 4) {
            const std::uint8_t sib = *p_++;
            base = (sib & 7) | (not_b_ ? 0 : 8);
            has_base = (sib & 7) != 5 || mode != 0;
            const int index = (sib >> 3 & 7) | (not_x_ ? 0 : 8);
            if (index != 4) stride = value_of(index) * (1 << (sib >> 6));
        }
        const bool is_relative = (modrm & 7) == 5 && mode == 0;
        std::int64_t at = 0;
        if (mode == 1) {
            at = static_cast<std::int8_t>(*p_++);
        } else if (mode == 2 || is_relative || !has_base) {
            std::int32_t displacement;
            std::memcpy(&displacement, p_, sizeof displacement);
            p_ += 4;
            at = displacement;
        }
        if (is_relative) at += reinterpret_cast<std::int64_t>(p_);
        else if (has_base) at += value_of(base);
        address = reinterpret_cast<std::uint8_t*>(at);
    }
};

bool execute(const Instruction& i) {
    constexpr int kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;
    if (!i.known()) return false;
    if (i.opcode == 0x49 && i.prefix == kNone && i.is_register) release();
    else if (i.opcode == 0x49 && i.prefix == kNone) configure(i.address + i.stride);
    else if (i.opcode == 0x49 && i.prefix == kF2 && i.is_register) zero(i.first);
    else if (i.opcode == 0x4b && (i.prefix == kF2 || i.prefix == k66)) load(i.first, i.address, i.stride);
    else if (i.opcode == 0x4b && i.prefix == kF3) store(i.first, i.address, i.stride);
    else if (i.opcode == 0x5c && i.prefix == kF3) multiply(i.first, i.second, i.third);
    else return false;
    return true;
}

void on_unknown(int signal, siginfo_t*, void* of_thread) {
    ucontext_t& context = *static_cast<ucontext_t*>(of_thread);
    greg_t& at = context.uc_mcontext.gregs[REG_RIP];
    const Instruction instruction(context, reinterpret_cast<const std::uint8_t*>(at));
    if (execute(instruction)) {
        at = reinterpret_cast<greg_t>(instruction.end());
        executed.fetch_add(1, std::memory_order_relaxed);
        const std::size_t between = between_signals.load(std::memory_order_relaxed);
        if (between == 0 || handlers > 0 || ++since_signal < between) return;
        since_signal = 0;
        raise(signal_to_raise);  // it comes behind this handler
    } else {
        std::signal(signal, SIG_DFL);  // the instruction is executed again, and ends the program
    }
}

}  // namespace

bool begin() {
    karat::TileSystem system = karat::this_system(karat::avx512_amx::tiles_multiply);
    has_its_own = system.has();
    if (has_its_own) {
        const karat::TileUse use = karat::try_tiles(system);
        if (!use.granted) std::fprintf(stderr, "%s\n", use.refusal.c_str());
        return use.granted;
    }
    struct sigaction action{};
    action.sa_sigaction = on_unknown;
    action.sa_flags = SA_SIGINFO;
    sigfillset(&action.sa_mask);  // an instruction is done at once
    return sigaction(SIGILL, &action, nullptr) == 0;
}

bool in_use() {
    if (!has_its_own) return tiles.configured;
    alignas(64) std::uint8_t configuration[64];
    __asm__ volatile("sttilecfg %0" : "=m"(configuration));
    return configuration[0] != 0;
}

std::size_t num_instructions() { return executed.load(); }

void interrupt_every(std::size_t instructions, int signal) {
    signal_to_raise = signal;
    between_signals = instructions;
}

AroundHandler::AroundHandler() : before_(tiles) {
    ++handlers;
    release();
}

AroundHandler::~AroundHandler() {
    tiles = before_;
    --handlers;
}

}  // namespace emulated
