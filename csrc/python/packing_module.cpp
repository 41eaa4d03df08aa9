#include "python/packing_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "contract/packed.h"
#include "plan/require.h"
#include "plan/weights.h"
#include "python/formats.h"
#include "python/gil.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

namespace nb = nanobind;

namespace karat {
namespace {

template <class T>
using Flat = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The version of the layout (contract/packed.h), for files that keep packed matrices: it changes with any byte of any.
constexpr int kPackedLayout = 1;

constexpr std::size_t kPackedTogether = 32;  // panels, of a large matrix

// Gives pages of a mapped file back to the system as far as they lie wholly in [from, to); they are read again if they
// are needed again.
void give_back([[maybe_unused]] const std::uint8_t* from, [[maybe_unused]] const std::uint8_t* to) {
#ifdef MADV_DONTNEED
    static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<std::uintptr_t>(from) + page - 1) / page * page;
    const auto last = reinterpret_cast<std::uintptr_t>(to) / page * page;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
#endif
}

// Whether an array is a view of a read-only mmap.mmap: only pages that nobody can have written to are read again as
// they were.
bool is_of_a_mapping(const Flat<std::uint8_t>& array, nb::object owner) {
    const nb::object mapping = nb::module_::import_("mmap").attr("mmap");
    while (!nb::isinstance(owner, mapping)) {
        const char* const next = nb::hasattr(owner, "base") ? "base" : "obj";  // of an array, of a memoryview
        if (!nb::hasattr(owner, next)) return false;
        owner = owner.attr(next);
    }
    Py_buffer view;
    if (PyObject_GetBuffer(owner.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    const std::size_t length = static_cast<std::size_t>(view.len), bytes = array.shape(0);
    const auto at = reinterpret_cast<std::uintptr_t>(array.data()) - reinterpret_cast<std::uintptr_t>(view.buf);
    const bool inside = view.readonly && bytes <= length && at <= length - bytes;
    PyBuffer_Release(&view);
    return inside;
}

// A matrix whose memory is there and whose content is not. Threads take panels of it until none is left.
struct Job {
    std::shared_ptr<OwnedMatrix> packed;
    Flat<std::uint8_t> whole;         // of which `stored` are columns
    std::vector<std::int64_t> order;  // of rows, if they are in another
    StoredRows stored;
    bool mapped;
    std::size_t own_bytes, item;  // of the stored matrix; panels that a thread takes at once
    std::atomic<std::size_t> next{0}, done{0};

    const std::uint8_t* row_of_panel(std::size_t panel) const {
        const Matrix& matrix = packed->matrix;
        const std::size_t row = matrix.first_group(panel) * kGroupRows;
        return whole.data() + stored.at(panel < matrix.num_panels() ? std::min(matrix.rows, row) : matrix.rows);
    }

    void take_part() {
        const std::size_t count = packed->matrix.num_panels();
        for (std::size_t i; (i = next.fetch_add(item)) < count;) {
            const std::size_t end = std::min(count, i + item);
            pack_panels(packed->matrix, stored, i, end, packed->memory.bytes());
            if (mapped && order.empty() && item == kPackedTogether) give_back(row_of_panel(i), row_of_panel(end));
            if (done.fetch_add(end - i) + (end - i) == count && mapped)
                give_back(whole.data(), whole.data() + whole.shape(0));
        }
    }
};

// Packs stored matrices, panels shared out among the threads: what was added, in the order in which it came. Pages of
// mapped files are given back as they are done, so that a model is not in memory twice.
class Packer {
public:
    explicit Packer(int num_threads) : num_threads_(num_threads) {
        if (num_threads < 1) throw std::invalid_argument(std::to_string(num_threads) + " threads; expected 1 or more");
    }

    Packer(const Packer&) = delete;
    Packer& operator=(const Packer&) = delete;

    // `stored` has rows of `row_bytes` (0: of the matrix' own bytes), of which the matrix' begin at `first_byte`, in
    // their order or in `order`. The result holds zeros or nonsense until `run` has packed it; `stored` is kept until
    // then, and must not change.
    std::shared_ptr<const OwnedMatrix> add(const std::string& format, std::size_t rows, std::size_t columns,
                                           nb::object array, bool mapped, std::size_t row_bytes, std::size_t first_byte,
                                           std::optional<Flat<std::int64_t>> order) {
        Flat<std::uint8_t> stored;
        if (!nb::try_cast(array, stored, /*convert=*/false))
            throw nb::type_error("no flat array of bytes, one after the other");
        if (mapped && !is_of_a_mapping(stored, array))
            throw std::invalid_argument("an array of no read-only mmap.mmap: what is given back of it would be lost");
        Matrix matrix{format_of(format), rows, columns, nullptr};
        const FormatInfo& info = matrix.info();
        const std::size_t own_bytes = product({columns / info.block_columns, info.block_bytes});
        if (row_bytes == 0) row_bytes = own_bytes;
        const std::size_t num_stored = row_bytes == 0 ? 0 : stored.shape(0) / row_bytes;
        if (rows == 0 || columns == 0 || columns % info.block_columns != 0 || own_bytes > row_bytes ||
            first_byte > row_bytes - own_bytes || stored.shape(0) % row_bytes != 0 ||
            (order ? order->shape(0) : num_stored) != rows)
            throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                        " as " + format + " in " + std::to_string(stored.shape(0)) + " bytes");
        // A copy, so that what was checked is what is read without the interpreter's lock.
        std::vector<std::int64_t> in_order;
        if (order) in_order.assign(order->data(), order->data() + rows);
        for (const std::int64_t row : in_order)
            if (static_cast<std::size_t>(row) >= num_stored)
                throw std::invalid_argument("row " + std::to_string(row) + " of " + std::to_string(num_stored));
        Memory memory(matrix.packed_bytes() + kPackedSlack, /*together=*/true);
        matrix.data = memory.bytes();
        const std::size_t share = matrix.num_panels() / (8 * static_cast<std::size_t>(num_threads_));
        Job& job = jobs_.emplace_back();
        job.packed = std::make_shared<OwnedMatrix>(OwnedMatrix{matrix, std::move(memory), nullptr});
        job.whole = stored;
        job.order = std::move(in_order);
        job.stored = {stored.data() + first_byte, row_bytes, job.order.empty() ? nullptr : job.order.data()};
        job.mapped = mapped;
        job.own_bytes = own_bytes * rows;
        job.item = std::clamp<std::size_t>(share, 1, kPackedTogether);
        pending_ += job.own_bytes;
        return job.packed;
    }

    // Packs the next matrices, until they are `num_bytes` as they were stored, or none is left, on all threads but
    // `spared`, and on one at least. The interpreter's lock is free meanwhile.
    void run(std::size_t num_bytes, int spared) {
        const auto pool = Pool::of(std::max(1, num_threads_ - std::clamp(spared, 0, num_threads_)));
        std::list<Job> now;
        std::size_t taken = 0;
        while (!jobs_.empty() && taken < num_bytes) {
            taken += jobs_.front().own_bytes;
            now.splice(now.end(), jobs_, jobs_.begin());
        }
        pending_ -= taken;
        const GilReleased released;  // gone before `now`, whose objects are the interpreter's
        pool->run(
            [](void* jobs, int) {
                for (Job& job : *static_cast<std::list<Job>*>(jobs)) job.take_part();
            },
            &now);
    }

    std::size_t pending() const { return pending_; }

private:
    const int num_threads_;
    std::list<Job> jobs_;
    std::size_t pending_ = 0;  // bytes as they were stored
};

std::shared_ptr<const OwnedMatrix> pack(const std::string& format, std::size_t rows, std::size_t columns,
                                        nb::object stored, int num_threads, bool mapped, std::size_t row_bytes,
                                        std::size_t first_byte, std::optional<Flat<std::int64_t>> order) {
    Packer packer(num_threads);
    const auto packed =
        packer.add(format, rows, columns, std::move(stored), mapped, row_bytes, first_byte, std::move(order));
    packer.run(packer.pending(), 0);
    return packed;
}

// What keeps the file that an array is a view of.
std::shared_ptr<void> kept(nb::object array) {
    return {array.inc_ref().ptr(), [](void* object) {
                const nb::gil_scoped_acquire held;
                nb::handle(static_cast<PyObject*>(object)).dec_ref();
            }};
}

// A table in a file that is mapped read-only, row after row as it is stored: rows are read when they are gathered.
std::shared_ptr<const StoredTable> stored_table(const std::string& format, std::size_t rows, std::size_t columns,
                                                nb::object array) {
    Flat<std::uint8_t> stored;
    if (!nb::try_cast(array, stored, /*convert=*/false) || !is_of_a_mapping(stored, array))
        throw std::invalid_argument("an array of no read-only mmap.mmap: what is in it could change");
    const Matrix shape{format_of(format), rows, columns, nullptr};
    const FormatInfo& info = shape.info();
    const std::size_t row_bytes = product({columns / info.block_columns, info.block_bytes});
    if (rows == 0 || columns == 0 || columns % info.block_columns != 0 || product({rows, row_bytes}) != stored.shape(0))
        throw std::invalid_argument("no table of " + std::to_string(rows) + " x " + std::to_string(columns) + " as " +
                                    format + " in " + std::to_string(stored.shape(0)) + " bytes");
    return std::make_shared<const StoredTable>(StoredTable{shape, {stored.data(), row_bytes}, kept(std::move(array))});
}

// A matrix that is packed already, in a file that is mapped read-only: nothing is read or copied. `packed` begins with
// it, and has the bytes that kernels may read past its end.
std::shared_ptr<const OwnedMatrix> mapped_matrix(const std::string& format, std::size_t rows, std::size_t columns,
                                                 nb::object array) {
    Flat<std::uint8_t> packed;
    if (!nb::try_cast(array, packed, /*convert=*/false) || !is_of_a_mapping(packed, array))
        throw std::invalid_argument("an array of no read-only mmap.mmap: what is in it could change");
    const Matrix matrix{format_of(format), rows, columns, packed.data()};
    const FormatInfo& info = matrix.info();
    if (rows == 0 || columns == 0 || columns % info.block_columns != 0 ||
        product({rows, columns / info.block_columns, info.block_bytes}) >
            packed.shape(0) ||  // no product below overflows
        matrix.packed_bytes() + kPackedSlack > packed.shape(0) ||
        reinterpret_cast<std::uintptr_t>(packed.data()) % 64 != 0)
        throw std::invalid_argument("no packed matrix of " + std::to_string(rows) + " x " + std::to_string(columns) +
                                    " as " + format + " in " + std::to_string(packed.shape(0)) + " bytes");
    return std::make_shared<const OwnedMatrix>(OwnedMatrix{matrix, Memory(), kept(std::move(array))});
}

// The packed bytes themselves, read-only.
nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> packed_bytes(nb::handle self) {
    const Matrix& matrix = nb::cast<const OwnedMatrix&>(self).matrix;
    return {matrix.data, {matrix.packed_bytes()}, self};
}

// The bytes of a table as they are stored, read-only.
nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> table_bytes(nb::handle self) {
    const StoredTable& table = nb::cast<const StoredTable&>(self);
    return {table.rows.data, {table.shape.rows * table.rows.stride}, self};
}

// The bytes of a packed matrix as they were stored.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> unpack_matrix(const OwnedMatrix& self) {
    const FormatInfo& info = self.matrix.info();
    const std::size_t bytes = self.matrix.rows * (self.matrix.columns / info.block_columns) * info.block_bytes;
    auto stored = std::make_unique<std::uint8_t[]>(bytes);
    {
        const GilReleased released;
        unpack(self.matrix, stored.get());
    }
    std::uint8_t* data = stored.release();
    const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<std::uint8_t*>(memory); });
    return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(data, {bytes}, owner);
}

}  // namespace

void bind_packing(nb::module_& m) {
    nb::class_<OwnedMatrix>(m, "Matrix")
        .def_prop_ro("format", [](const OwnedMatrix& self) { return std::string(self.matrix.info().name); })
        .def_prop_ro("rows", [](const OwnedMatrix& self) { return self.matrix.rows; })
        .def_prop_ro("columns", [](const OwnedMatrix& self) { return self.matrix.columns; })
        .def_prop_ro("num_bytes", [](const OwnedMatrix& self) { return self.memory.size(); })
        .def_prop_ro("packed", &packed_bytes)
        .def("stored", &unpack_matrix);
    nb::class_<StoredTable>(m, "StoredTable")
        .def_prop_ro("format", [](const StoredTable& self) { return std::string(self.shape.info().name); })
        .def_prop_ro("rows", [](const StoredTable& self) { return self.shape.rows; })
        .def_prop_ro("columns", [](const StoredTable& self) { return self.shape.columns; })
        .def("stored", &table_bytes);
    nb::class_<Packer>(m, "Packer")
        .def(nb::init<int>(), nb::arg("num_threads"))
        .def("add", &Packer::add, nb::arg("stored_as"), nb::arg("rows"), nb::arg("columns"), nb::arg("stored"),
             nb::arg("mapped") = false, nb::arg("row_bytes") = 0, nb::arg("first_byte") = 0,
             nb::arg("order") = nb::none())
        .def("run", &Packer::run, nb::arg("num_bytes"), nb::arg("spared") = 0)
        .def_prop_ro("pending", &Packer::pending);
    m.attr("PACKED_LAYOUT") = kPackedLayout;
    m.attr("PACKED_SLACK") = kPackedSlack;
    m.def("stored_table", &stored_table, nb::arg("stored_as"), nb::arg("rows"), nb::arg("columns"), nb::arg("stored"));
    m.def("mapped_matrix", &mapped_matrix, nb::arg("stored_as"), nb::arg("rows"), nb::arg("columns"),
          nb::arg("packed"));
    m.def("pack", &pack, nb::arg("stored_as"), nb::arg("rows"), nb::arg("columns"), nb::arg("stored"),
          nb::arg("num_threads"), nb::arg("mapped") = false, nb::arg("row_bytes") = 0, nb::arg("first_byte") = 0,
          nb::arg("order") = nb::none());
}

}  // namespace karat
