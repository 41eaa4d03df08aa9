// A plugin of qemu-user that prints how many instructions a program has executed (tools/count_instructions). What it
// uses of qemu's interface for plugins, version 1 (qemu 4.2 to 8.1), is declared here: Debian has no header of it.
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#define KARAT_SEEN __attribute__((visibility("default")))

extern "C" {

struct qemu_plugin_tb;  // instructions that are executed together
void qemu_plugin_register_vcpu_tb_trans_cb(std::uint64_t id, void (*translated)(std::uint64_t, qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(qemu_plugin_tb* block, int operation, void* to, std::uint64_t number);
std::size_t qemu_plugin_tb_n_insns(const qemu_plugin_tb* block);
void qemu_plugin_register_atexit_cb(std::uint64_t id, void (*ended)(std::uint64_t, void*), void* data);

KARAT_SEEN int qemu_plugin_version = 1;

KARAT_SEEN int qemu_plugin_install(std::uint64_t id, const void*, int, char**) {
    static std::uint64_t count;
    qemu_plugin_register_vcpu_tb_trans_cb(id, [](std::uint64_t, qemu_plugin_tb* block) {
        constexpr int kAdd = 0;
        qemu_plugin_register_vcpu_tb_exec_inline(block, kAdd, &count, qemu_plugin_tb_n_insns(block));
    });
    qemu_plugin_register_atexit_cb(
        id, [](std::uint64_t, void*) { std::fprintf(stderr, "%" PRIu64 "\n", count); }, nullptr);
    return 0;
}
}
