// Memory of recorded launches. It stays with the device, as recordings know its addresses; what is released is given
// out again, in the same recording and in others, since all launches come one after another.
#pragma once

#include <cstddef>
#include <map>

namespace karat::gpu {

class ReusedMemory {
public:
    // Memory for at least so many bytes that nobody holds; null: there is none of about that size.
    void* take(std::size_t bytes) {
        const auto found = free_.lower_bound(bytes);
        if (found == free_.end() || found->first > 2 * bytes + kSlack) return nullptr;
        void* const at = found->second;
        free_.erase(found);
        return at;
    }
    void add(void* at, std::size_t bytes) { sizes_.emplace(at, bytes); }
    // Whether this is memory of a recording: it may then be taken again.
    bool release(void* at) {
        const auto found = sizes_.find(at);
        if (found == sizes_.end()) return false;
        free_.emplace(found->second, at);
        return true;
    }
    template <class F>
    void each(const F& f) const {
        for (const auto& [at, bytes] : sizes_) f(at);
    }

private:
    static constexpr std::size_t kSlack = 4096;
    std::map<void*, std::size_t> sizes_;
    std::multimap<std::size_t, void*> free_;
};

}  // namespace karat::gpu
