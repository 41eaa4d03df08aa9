// The memory of the emulation is the host's, and begins as NaN.
#if !defined(__CUDACC__)

#include <cstring>
#include <new>

#include "gpu/device.h"
#include "gpu/simt.h"

namespace karat::gpu {

namespace {
constexpr std::align_val_t kAlignment{256};
}

std::string why_no_device() { return ""; }
std::shared_ptr<Device> open_device(unsigned number) { return std::make_shared<Device>(number); }
std::string name_of(const Device&) { return "emulation"; }
std::size_t free_bytes(Device&) { return 0; }

void* allocate(Device&, std::size_t bytes) {
    void* const at = ::operator new(bytes, kAlignment, std::nothrow);
    if (!at) throw OutOfDeviceMemory("there is no room for " + std::to_string(bytes) + " bytes more");
    return std::memset(at, 0xff, bytes);
}
void release(Device&, void* at, std::size_t) { ::operator delete(at, kAlignment); }

void upload(Device&, void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void download(Device&, void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void fill(Device&, void* at, int byte, std::size_t bytes) { std::memset(at, byte, bytes); }

}  // namespace karat::gpu

#endif
