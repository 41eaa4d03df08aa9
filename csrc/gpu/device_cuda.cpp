// The memory of a GPU, by CUDA's runtime. Compiled by nvcc alone.
#if defined(__CUDACC__)

#include <string>

#include "gpu/device.h"
#include "gpu/simt.h"

namespace karat::gpu {
namespace {

void require(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    throw DeviceError(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

int num_devices() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace

std::string why_no_device() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver)
        return "there is no NVIDIA driver (libcuda.so.1), or it is older than CUDA 13";
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) return "the NVIDIA driver shows no GPU";
    return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

std::shared_ptr<Device> open_device(unsigned number) {
    if (const std::string reason = why_no_device(); !reason.empty()) throw DeviceError(reason);
    if (static_cast<int>(number) >= num_devices())
        throw DeviceError("there is no GPU " + std::to_string(number) + "; the driver shows " +
                          std::to_string(num_devices()));
    const int id = static_cast<int>(number);
    require(cudaSetDevice(id), "the GPU cannot be used");
    const std::shared_ptr<Device> device(new Device{nullptr, id}, [](Device* d) {
        if (d->stream) cudaStreamDestroy(d->stream);
        delete d;
    });
    require(cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "a stream");
    cudaMemPool_t pool;
    require(cudaDeviceGetDefaultMemPool(&pool, id), "the GPU's memory");
    std::uint64_t keep = ~std::uint64_t{0};  // what is released stays with the process
    require(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "the GPU's memory");
    return device;
}

std::string name_of(const Device& device) {
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, device.number), "the GPU's properties");
    return properties.name;
}

std::size_t free_bytes(Device& device) {
    std::size_t free = 0, total = 0;
    device.use();
    require(cudaMemGetInfo(&free, &total), "the GPU's memory");
    return free;
}

void* allocate(Device& device, std::size_t bytes) {
    void* at = nullptr;
    device.use();
    const cudaError_t status = cudaMallocAsync(&at, bytes, device.stream);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // it is told, and not of the next call
        std::size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        throw OutOfDeviceMemory("there is no room for " + std::to_string(bytes) +
                                " bytes more: " + std::to_string(free) + " of " + std::to_string(total) + " are free");
    }
    require(status, "memory");
    return at;
}
void release(Device& device, void* at, std::size_t) {
    device.use();
    cudaFreeAsync(at, device.stream);
}

void upload(Device& device, void* to, const void* from, std::size_t bytes) {
    device.use();
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device.stream), "a copy to the GPU");
}
void download(Device& device, void* to, const void* from, std::size_t bytes) {
    device.use();
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device.stream), "a copy from the GPU");
    require(cudaStreamSynchronize(device.stream), "the GPU");
}
void fill(Device& device, void* at, int byte, std::size_t bytes) {
    device.use();
    require(cudaMemsetAsync(at, byte, bytes, device.stream), "the GPU's memory");
}

}  // namespace karat::gpu

#endif
