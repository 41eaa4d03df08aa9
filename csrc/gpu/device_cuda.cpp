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

void refuse_while_recording(const Device& device) {
    if (device.is_recording) throw DeviceError("a copy from or to the host while launches are recorded");
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
    const std::shared_ptr<Device> device(new Device{nullptr, id, false, {}}, [](Device* d) {
        if (d->stream) cudaStreamDestroy(d->stream);
        d->reused.each([](void* at) { cudaFree(at); });
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
    void* at = device.is_recording ? device.reused.take(bytes) : nullptr;
    if (at) return at;
    device.use();
    const cudaError_t status =
        device.is_recording ? cudaMalloc(&at, bytes) : cudaMallocAsync(&at, bytes, device.stream);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // it is told, and not of the next call
        std::size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        throw OutOfDeviceMemory("there is no room for " + std::to_string(bytes) +
                                " bytes more: " + std::to_string(free) + " of " + std::to_string(total) + " are free");
    }
    require(status, "memory");
    if (device.is_recording) device.reused.add(at, bytes);
    return at;
}
void release(Device& device, void* at, std::size_t) {
    if (device.reused.release(at)) return;
    device.use();
    cudaFreeAsync(at, device.stream);
}
void* allocate_host(Device& device, std::size_t bytes) {
    void* at = nullptr;
    device.use();
    require(cudaMallocHost(&at, bytes), "memory of the host");
    return at;
}
void release_host(void* at) { cudaFreeHost(at); }

void upload(Device& device, const Copy& c) {
    refuse_while_recording(device);
    device.use();
    require(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyHostToDevice, device.stream), "a copy to the GPU");
}
void download(Device& device, const Copy& c) {
    refuse_while_recording(device);
    device.use();
    require(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDeviceToHost, device.stream), "a copy from the GPU");
    require(cudaStreamSynchronize(device.stream), "the GPU");
}
void fill(Device& device, void* at, int byte, std::size_t bytes) {
    device.use();
    require(cudaMemsetAsync(at, byte, bytes, device.stream), "the GPU's memory");
}

namespace {

class Graph final : public Recording {
public:
    Graph(const Device& device, cudaGraph_t graph) : device_(device) {
        require(cudaGraphInstantiate(&run_, graph, 0), "a graph of launches");
    }
    ~Graph() override { cudaGraphExecDestroy(run_); }
    void replay() override {
        device_.use();
        require(cudaGraphLaunch(run_, device_.stream), "a graph of launches");
    }

private:
    const Device& device_;
    cudaGraphExec_t run_ = nullptr;
};

}  // namespace

// Relaxed: memory is allocated, and kernels are loaded, while launches are recorded.
void begin_recording(Device& device) {
    device.use();
    require(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeRelaxed), "recording");
    device.is_recording = true;
}
std::unique_ptr<Recording> end_recording(Device& device) {
    device.use();
    device.is_recording = false;
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(device.stream, &graph), "recording");
    const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph, cudaGraphDestroy);
    return std::make_unique<Graph>(device, graph);
}

}  // namespace karat::gpu

#endif
