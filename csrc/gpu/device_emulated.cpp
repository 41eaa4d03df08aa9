// The memory of the emulation is the host's, and begins as NaN. A recording is a list of what to run.
#if !defined(__CUDACC__)

#include <cstring>
#include <new>

#include "gpu/device.h"
#include "gpu/simt.h"

namespace karat::gpu {

namespace {

constexpr std::align_val_t kAlignment{256};

struct ListOfWork final : Recording {
    std::vector<std::function<void()>> work;
    void replay() override {
        for (const auto& each : work) each();
    }
};

void refuse_while_recording(const Device& device) {
    if (device.is_recording) throw DeviceError("a copy from or to the host while launches are recorded");
}

}  // namespace

std::string why_no_device() { return ""; }
std::shared_ptr<Device> open_device(unsigned number) {
    return {new Device(number), [](Device* device) {
                device->reused.each([](void* at) { ::operator delete(at, kAlignment); });
                delete device;
            }};
}
std::string name_of(const Device&) { return "emulation"; }
std::size_t free_bytes(Device&) { return 0; }

void* allocate(Device& device, std::size_t bytes) {
    if (device.is_recording)
        if (void* const at = device.reused.take(bytes)) return at;
    void* const at = ::operator new(bytes, kAlignment, std::nothrow);
    if (!at) throw OutOfDeviceMemory("there is no room for " + std::to_string(bytes) + " bytes more");
    if (device.is_recording) device.reused.add(at, bytes);
    return std::memset(at, 0xff, bytes);
}
void release(Device& device, void* at, std::size_t) {
    if (!device.reused.release(at)) ::operator delete(at, kAlignment);
}
void* allocate_host(Device&, std::size_t bytes) { return ::operator new(bytes, kAlignment); }
void release_host(void* at) { ::operator delete(at, kAlignment); }

void upload(Device& device, const Copy& c) {
    refuse_while_recording(device);
    std::memcpy(c.to, c.from, c.bytes);
}
void download(Device& device, const Copy& c) {
    refuse_while_recording(device);
    std::memcpy(c.to, c.from, c.bytes);
}
void fill(Device& device, void* at, int byte, std::size_t bytes) {
    device.run_or_record([=] { std::memset(at, byte, bytes); });
}

void begin_recording(Device& device) {
    device.is_recording = true;
    device.recorded.clear();
}
std::unique_ptr<Recording> end_recording(Device& device) {
    device.is_recording = false;
    auto recording = std::make_unique<ListOfWork>();
    recording->work.swap(device.recorded);
    return recording;
}

}  // namespace karat::gpu

#endif
