// A device and its memory, whichever it is: the emulation (device_emulated.cpp) or a GPU (device_cuda.cpp). What is
// asked of a device happens in the order in which it was asked.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

namespace karat::gpu {

struct Device;

// What the driver says went wrong. After it the device may be of no use any more.
struct DeviceError : std::runtime_error { using std::runtime_error::runtime_error; };

struct OutOfDeviceMemory : std::runtime_error { using std::runtime_error::runtime_error; };

// Why there is no device of this kind here; empty: there is one.
std::string why_no_device();

// `number` is that of a GPU among those that the process sees, or the seed of the emulation's order.
std::shared_ptr<Device> open_device(unsigned number);

std::string name_of(const Device& device);
std::size_t free_bytes(Device& device);  // of its memory; 0: not known

// 256-byte aligned, of any contents (NaN in the emulation). Throws OutOfDeviceMemory.
void* allocate(Device& device, std::size_t bytes);
void release(Device& device, void* at, std::size_t bytes);

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
};
void upload(Device& device, const Copy& copy);    // `from` may be changed at once
void download(Device& device, const Copy& copy);  // waits for all that was asked before
void fill(Device& device, void* at, int byte, std::size_t bytes);

// Memory of the host that downloads are fast to.
void* allocate_host(Device& device, std::size_t bytes);
void release_host(void* at);

// Launches that were recorded once, to be asked for again together: a graph of CUDA's, a list in the emulation.
//
// Between the two functions launches and fills are noted and not done; nothing can be uploaded or
// downloaded. What is allocated meanwhile stays with the device (ReusedMemory): a recording reads what it wrote itself,
// and memory that was allocated before.
struct Recording {
    virtual ~Recording() = default;
    virtual void replay() = 0;
};
void begin_recording(Device& device);
std::unique_ptr<Recording> end_recording(Device& device);

// Memory of a device for as long as it lives.
class DeviceMemory {
public:
    DeviceMemory(std::shared_ptr<Device> device, std::size_t bytes)
        : device_(std::move(device)), bytes_(bytes), at_(bytes ? allocate(*device_, bytes) : nullptr) {}
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    ~DeviceMemory() {
        if (at_) release(*device_, at_, bytes_);
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(at_);
    }
    std::size_t bytes() const { return bytes_; }
    Device& device() const { return *device_; }

private:
    std::shared_ptr<Device> device_;
    std::size_t bytes_;
    void* at_;
};

}  // namespace karat::gpu
