// kvferry::store::Store and View for kvferry.store, which documents and checks.
#include "kvferry/store.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fork_count.h"
#include "errors.h"
#include "module.h"
#include "seconds.h"
#include "store_args.h"

namespace kvferry::python {
namespace {

using namespace kvferry::store;  // NOLINT: this file binds that namespace

struct StoreDeleter {  // as NodeDeleter
  std::uint64_t forks = fork_count();
  void operator()(Store* store) const {
    if (fork_count() != forks) return;
    const GilRelease unlocked;
    delete store;
  }
};
using StoreHolder = std::unique_ptr<Store, StoreDeleter>;
using Objects = py::typing::List<py::object>;
using StoreClass = py::class_<Store, StoreHolder>;

// Part of a view. Python's memoryviews keep it, it keeps the pin.
struct ViewPiece {
  std::shared_ptr<View> view;
  std::span<const std::byte> bytes;
};

ReadOptions read_options(double timeout_s) { return {to_milliseconds(timeout_s), std::nullopt}; }

StoreHolder open(const Endpoint& node, const StoreOptions& options) {
  const GilRelease unlocked;
  return StoreHolder(unwrap(Store::open(node, options)).release());
}

StoreHolder embedded(Node& node, const StoreOptions& options) {
  const GilRelease unlocked;
  return StoreHolder(unwrap(Store::embedded(node, options)).release());
}

template <typename R>
Objects errors_of(const std::vector<R>& results) {
  Objects errors;
  for (const R& result : results) {
    if constexpr (std::is_same_v<R, Status>) {
      errors.append(to_exception(result));
    } else {
      errors.append(to_exception(result.status));
    }
  }
  return errors;
}

struct PutArguments {
  double timeout_s = 0;
  std::uint32_t replicas = 0;
  std::optional<double> ttl_s;
  std::vector<std::string> tags;
  bool chain = false;
};

// One (error or None, created, replicas) per key.
Objects put_all(Store& self, const py::object& keys, const Runs<const std::byte>& runs, const PutArguments& arguments,
                const std::optional<py::object>& parents) {
  const Keys names(keys);
  const std::optional<Keys> before = parents ? std::optional<Keys>(*parents) : std::nullopt;
  PutOptions options;
  options.timeout = to_milliseconds(arguments.timeout_s);
  options.replicas = arguments.replicas;
  if (arguments.ttl_s) options.ttl = to_milliseconds(*arguments.ttl_s);
  options.tags = arguments.tags;
  options.chain = arguments.chain;
  if (before) options.parents.assign(before->views().begin(), before->views().end());
  std::vector<PutResult> results;
  {
    const GilRelease unlocked;
    results = self.put(names.views(), runs.values(), options);
  }
  Objects out;
  for (const PutResult& result : results) {
    out.append(py::make_tuple(to_exception(result.status), result.created, result.replicas));
  }
  return out;
}

Objects put(Store& self, const py::object& keys, const py::buffer& addresses, const py::buffer& lengths,
            const py::buffer& counts, const PutArguments& arguments, const std::optional<py::object>& parents) {
  return put_all(self, keys, Runs<const std::byte>(addresses, lengths, counts), arguments, parents);
}

Objects put_buffers(Store& self, const py::object& keys, const BufferRuns& buffers, const PutArguments& arguments,
                    const std::optional<py::object>& parents) {
  return put_all(self, keys, Runs<const std::byte>(buffers), arguments, parents);
}

// One (error or None, bytes) per key.
Objects get_all_into(Store& self, const py::object& keys, const Runs<std::byte>& runs, double timeout_s,
                     std::optional<bool> verify) {
  const Keys names(keys);
  std::vector<GetResult> results;
  {
    const GilRelease unlocked;
    results = self.get_into(names.views(), runs.values(), {to_milliseconds(timeout_s), verify});
  }
  Objects out;
  for (const GetResult& result : results) out.append(py::make_tuple(to_exception(result.status), result.bytes));
  return out;
}

Objects get_into(Store& self, const py::object& keys, const py::buffer& addresses, const py::buffer& lengths,
                 const py::buffer& counts, double timeout_s, std::optional<bool> verify) {
  return get_all_into(self, keys, Runs<std::byte>(addresses, lengths, counts), timeout_s, verify);
}

Objects get_into_buffers(Store& self, const py::object& keys, const BufferRuns& buffers, double timeout_s,
                         std::optional<bool> verify) {
  return get_all_into(self, keys, Runs<std::byte>(buffers), timeout_s, verify);
}

std::uint64_t get_range(Store& self, const py::bytes& key, std::uint64_t offset, std::uintptr_t address,
                        std::uint64_t length, double timeout_s) {
  const std::string name(key);
  const GilRelease unlocked;
  const std::span<std::byte> target(reinterpret_cast<std::byte*>(address), length);  // NOLINT: as in Runs
  const GetResult result = self.get_range(name, offset, target, read_options(timeout_s));
  check(result.status);
  return result.bytes;
}

Objects sizes(Store& self, const py::object& keys, double timeout_s) {
  const Keys names(keys);
  std::vector<Result<std::uint64_t>> results;
  {
    const GilRelease unlocked;
    results = self.sizes(names.views(), read_options(timeout_s));
  }
  Objects out;
  for (const auto& result : results) {
    out.append(result.ok() ? py::object(py::int_(*result)) : to_exception(result.status()));
  }
  return out;
}

py::bytes exists(Store& self, const py::object& keys, double timeout_s) {
  const Keys names(keys);
  std::vector<std::uint8_t> found(names.views().size());
  {
    const GilRelease unlocked;
    check(self.exists(names.views(), found, read_options(timeout_s)));
  }
  return {reinterpret_cast<const char*>(found.data()), found.size()};
}

std::uint64_t match_prefix(Store& self, const py::object& keys, double timeout_s) {
  const Keys names(keys);
  const GilRelease unlocked;
  return unwrap(self.match_prefix(names.views(), read_options(timeout_s)));
}

std::shared_ptr<View> view(Store& self, const py::bytes& key, double timeout_s) {
  const std::string name(key);
  const GilRelease unlocked;
  return std::make_shared<View>(unwrap(self.view(name, read_options(timeout_s))));
}

Objects remove(Store& self, const py::object& keys, double timeout_s) {
  const Keys names(keys);
  std::vector<Status> results;
  {
    const GilRelease unlocked;
    results = self.remove(names.views(), read_options(timeout_s));
  }
  return errors_of(results);
}

void prefetch(Store& self, const py::object& keys, double within_s) {
  const Keys names(keys);
  const GilRelease unlocked;
  check(self.prefetch(names.views(), to_milliseconds(within_s)));
}

std::vector<ObjectInfo> list(Store& self, const py::bytes& prefix, const py::bytes& after, std::uint32_t limit,
                             double timeout_s) {
  const std::string begin(prefix);
  const std::string last(after);
  const GilRelease unlocked;
  return unwrap(self.list(begin, last, limit, read_options(timeout_s)));
}

void register_memory(Store& self, std::uintptr_t address, std::uint64_t length) {
  check(self.register_memory(reinterpret_cast<void*>(address), length));  // NOLINT: as in Runs
}

void unregister_memory(Store& self, std::uintptr_t address) {
  check(self.unregister_memory(reinterpret_cast<void*>(address)));  // NOLINT: as in Runs
}

void bind_runs(py::module_& module) {
  py::class_<BufferRuns>(module, "BufferRuns", "Where the bytes of plain buffers lie; holds the buffers.")
      .def_static(
          "find",
          [](const py::sequence& values, bool writable) -> std::optional<std::unique_ptr<BufferRuns>> {
            auto found = BufferRuns::find(values, writable);
            if (!found) return std::nullopt;
            return found;
          },
          py::arg("values"), py::arg("writable"), "None if a value is not a plain buffer or a list or tuple of such.")
      .def_property_readonly("addresses", &BufferRuns::addresses, "Of uint64, one for each run.")
      .def_property_readonly("lengths", &BufferRuns::lengths, "Of uint64, alike.")
      .def_property_readonly("counts", &BufferRuns::counts, "Of int64: how many runs each value has.");
}

void bind_view(py::module_& module) {
  py::class_<ViewPiece>(module, "ViewPiece", py::buffer_protocol(), "A run of an object's bytes, read in place.")
      .def_buffer([](ViewPiece& self) {
        auto* data = const_cast<std::byte*>(self.bytes.data());  // NOLINT: exported read-only
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(data), static_cast<py::ssize_t>(self.bytes.size()),
                               /*readonly=*/true);
      });
  py::class_<View, std::shared_ptr<View>>(module, "View", "A pinned object; ends with its last ViewPiece.")
      .def_property_readonly("nbytes", &View::bytes)
      .def("pieces", [](const std::shared_ptr<View>& self) {
        std::vector<ViewPiece> pieces;
        for (const auto& run : self->pieces()) pieces.push_back({self, run});
        return pieces;
      });
}

void bind_info(py::module_& module) {
  py::class_<ObjectInfo>(module, "ObjectInfo", "What is known of a stored object. Immutable.")
      .def_property_readonly("key", [](const ObjectInfo& self) { return py::bytes(self.key); })
      .def_property_readonly("tenant", [](const ObjectInfo& self) { return text(self.tenant); })
      .def_readonly("nbytes", &ObjectInfo::bytes)
      .def_property_readonly("tier", [](const ObjectInfo& self) { return self.tier == Tier::kDram ? "dram" : "ssd"; })
      .def_readonly("replicas", &ObjectInfo::replicas, "Wanted.")
      .def_property_readonly("tags",
                             [](const ObjectInfo& self) {
                               py::typing::List<py::str> tags;
                               for (const std::string& tag : self.tags) tags.append(text(tag));
                               return tags;
                             })
      .def_property_readonly("expires_in_s", [](const ObjectInfo& self) -> std::optional<double> {
        if (!self.expires_in) return std::nullopt;
        return to_seconds(*self.expires_in);
      });
}

// `callback` is called from any thread that finds the node gone; it takes the interpreter lock for that. None, or an
// error, which is reported as unraisable: not known.
void find_node(StoreOptions& self, py::typing::Callable<std::optional<Endpoint>()> callback) {
  const auto shared = std::shared_ptr<py::function>(new py::function(std::move(callback)), [](py::function* function) {
    const py::gil_scoped_acquire locked;
    delete function;
  });
  self.find_node = [shared]() -> std::optional<Endpoint> {
    const py::gil_scoped_acquire locked;
    try {
      return (*shared)().cast<std::optional<Endpoint>>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the callback of StoreOptions.find_node");
    } catch (const py::cast_error&) {
      PyErr_WriteUnraisable(shared->ptr());
    }
    return std::nullopt;
  };
}

void bind_store_options(py::module_& module) {
  py::class_<StoreOptions>(module, "StoreOptions")
      .def(py::init<>())
      .def_readwrite("engine", &StoreOptions::engine)
      .def_readwrite("cluster", &StoreOptions::cluster)
      .def_readwrite("tenant", &StoreOptions::tenant)
      .def_readwrite("verify", &StoreOptions::verify)
      .def("find_node", &find_node, py::arg("callback"))
      .def_property(
          "timeout_s", [](const StoreOptions& self) { return to_seconds(self.timeout); },
          [](StoreOptions& self, double seconds) { self.timeout = to_milliseconds(seconds); });
  py::class_<PutArguments>(module, "PutArguments")
      .def(py::init<>())
      .def_readwrite("timeout_s", &PutArguments::timeout_s)
      .def_readwrite("replicas", &PutArguments::replicas)
      .def_readwrite("ttl_s", &PutArguments::ttl_s)
      .def_readwrite("tags", &PutArguments::tags)
      .def_readwrite("chain", &PutArguments::chain);
}

// Another thread may be asking find_node() for the node meanwhile, and need the interpreter lock.
py::object error_of(const Store& self) {
  Status status;
  {
    const GilRelease unlocked;
    status = self.status();
  }
  return to_exception(status);
}

void bind_calls(StoreClass& cls, Blocking& blocking) {
  cls.def("put", &put, py::arg("keys"), py::arg("addresses"), py::arg("lengths"), py::arg("counts"),
          py::arg("arguments"), py::arg("parents"))
      .def("put_buffers", &put_buffers, py::arg("keys"), py::arg("buffers"), py::arg("arguments"), py::arg("parents"))
      .def("get_into_buffers", &get_into_buffers, py::arg("keys"), py::arg("buffers"), py::arg("timeout_s"),
           py::arg("verify"))
      .def("get_into", &get_into, py::arg("keys"), py::arg("addresses"), py::arg("lengths"), py::arg("counts"),
           py::arg("timeout_s"), py::arg("verify"))
      .def("get_range", &get_range, py::arg("key"), py::arg("offset"), py::arg("address"), py::arg("length_bytes"),
           py::arg("timeout_s"))
      .def("sizes", &sizes, py::arg("keys"), py::arg("timeout_s"))
      .def("exists", &exists, py::arg("keys"), py::arg("timeout_s"))
      .def("match_prefix", &match_prefix, py::arg("keys"), py::arg("timeout_s"))
      .def("view", &view, py::arg("key"), py::arg("timeout_s"))
      .def("remove", &remove, py::arg("keys"), py::arg("timeout_s"))
      .def("prefetch", &prefetch, py::arg("keys"), py::arg("within_s"))
      .def("list_objects", &list, py::arg("prefix"), py::arg("after"), py::arg("limit"), py::arg("timeout_s"));
  for (const char* name :
       {"put", "put_buffers", "get_into", "get_into_buffers", "get_range", "sizes", "exists", "match_prefix", "view",
        "remove", "prefetch", "list_objects", "__init__", "open", "embedded"}) {
    blocking.note(std::string("Store.") + name);
  }
  blocking.def(
      cls, "remove_tag",
      [](Store& self, const std::string& tag, double timeout_s) {
        return unwrap(self.remove_tag(tag, read_options(timeout_s)));
      },
      py::arg("tag"), py::arg("timeout_s"));
  blocking.def(cls, "register_memory", &register_memory, py::arg("address"), py::arg("length_bytes"));
  blocking.def(cls, "unregister_memory", &unregister_memory, py::arg("address"));
  blocking.def(
      cls, "node_stats",
      [](Store& self, double timeout_s) { return unwrap(self.node_stats(to_milliseconds(timeout_s))); },
      py::arg("timeout_s"));
  blocking.def(cls, "close", [](Store& self) { self.close(); });
}

}  // namespace

void bind_store(py::module_& module, Blocking& blocking) {
  bind_runs(module);
  bind_view(module);
  bind_info(module);
  bind_store_options(module);
  StoreClass cls(module, "Store");
  cls.def_static("open", &open, py::arg("node"), py::arg("options"))
      .def_static("embedded", &embedded, py::arg("node"), py::arg("options"), py::keep_alive<0, 1>())
      .def("members", &Store::members)
      .def("in_place", &Store::in_place)
      .def("error", &error_of)
      .def("counters", &Store::counters);
  blocking.note("Store.error");
  bind_calls(cls, blocking);
}

}  // namespace kvferry::python
