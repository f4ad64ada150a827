#include "kvferry/engine.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "buffers.h"
#include "errors.h"
#include "module.h"
#include "region.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

struct EngineDeleter {  // joins threads: others may run meanwhile
  void operator()(Engine* engine) const {
    const GilRelease unlocked;
    delete engine;
  }
};
using EngineHolder = std::unique_ptr<Engine, EngineDeleter>;
using EngineClass = py::class_<Engine, EngineHolder>;

EngineHolder create(const EngineOptions& options) {
  const GilRelease unlocked;
  return EngineHolder(unwrap(Engine::create(options)).release());
}

MemoryKind parse_kind(const std::string& name) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda, MemoryKind::kHip, MemoryKind::kAscend}) {
    if (memory_kind_name(kind) == name) return kind;
  }
  throw StatusError{{Code::kInvalidArgument, "memory of kind '" + name + "' cannot be registered"}};
}

RegionInfo register_address(Engine& self, std::uintptr_t address, std::uint64_t length_bytes, const std::string& name,
                            const std::string& access, const std::string& kind) {
  void* data = reinterpret_cast<void*>(address);  // NOLINT: an address is what buffers and tensors tell
  return unwrap(self.register_memory(data, length_bytes, name, parse_access(access), parse_kind(kind)));
}

std::pair<RegionInfo, std::uintptr_t> allocate(Engine& self, std::uint64_t length_bytes, const std::string& name,
                                               const std::string& access) {
  const auto [info, data] = unwrap(self.allocate(length_bytes, name, parse_access(access)));
  return {info, reinterpret_cast<std::uintptr_t>(data)};
}

DirectIo parse_direct(const std::string& direct) {
  if (direct == "auto") return DirectIo::kAuto;
  if (direct == "always") return DirectIo::kAlways;
  if (direct == "never") return DirectIo::kNever;
  throw StatusError{{Code::kInvalidArgument, "direct '" + direct + "' must be 'auto', 'always' or 'never'"}};
}

FileSync parse_sync(const std::string& sync) {
  if (sync == "none") return FileSync::kNone;
  if (sync == "data") return FileSync::kData;
  if (sync == "full") return FileSync::kFull;
  throw StatusError{{Code::kInvalidArgument, "sync '" + sync + "' must be 'none', 'data' or 'full'"}};
}

RegionInfo open_file(Engine& self, const py::bytes& path, std::uint64_t length_bytes, bool create,
                     const std::string& access, const std::string& direct, const std::string& sync) {
  const std::string name(path);
  const FileOptions options{length_bytes, create, parse_access(access), parse_direct(direct), parse_sync(sync)};
  const GilRelease unlocked;
  return unwrap(self.open_file(name, options));
}

std::shared_ptr<Peer> connect(Engine& self, const Endpoint& endpoint, const std::string& expected, double timeout_s) {
  const NodeId node = expected.empty() ? NodeId{} : unwrap(NodeId::parse(expected));
  return unwrap(self.connect(endpoint, node, to_milliseconds(timeout_s)));
}

Op parse_op(const std::string& op) {
  if (op == "read") return Op::kRead;
  if (op == "write") return Op::kWrite;
  throw StatusError{{Code::kInvalidArgument, "op '" + op + "' must be 'read' or 'write'"}};
}

// Only const methods of Plan are bound; pybind11 cannot hold a pointer to const.
std::shared_ptr<Plan> prepare(Engine& self, const std::shared_ptr<Peer>& peer, const py::buffer& array,
                              const std::string& op) {
  const std::vector<Piece> pieces = read_pieces(array);
  const GilRelease unlocked;
  return std::const_pointer_cast<Plan>(unwrap(self.prepare(peer, pieces, parse_op(op))));
}

std::shared_ptr<Plan> prepare_blocks(Engine& self, const std::shared_ptr<Peer>& peer, const std::string& op,
                                     const std::vector<BlockList>& local, const std::vector<BlockList>& remote,
                                     const py::buffer& local_index, const py::buffer& remote_index) {
  const std::vector<std::int32_t> near = read_indices(local_index, "local_index");
  const std::vector<std::int32_t> far = read_indices(remote_index, "remote_index");
  const GilRelease unlocked;
  return std::const_pointer_cast<Plan>(
      unwrap(self.prepare_blocks(peer, parse_op(op), BlockPairs{local, remote, near, far})));
}

Priority parse_priority(std::string_view priority) {
  if (priority == "normal") return Priority::kNormal;
  if (priority == "high") return Priority::kHigh;
  if (priority == "low") return Priority::kLow;
  throw StatusError{
      {Code::kInvalidArgument, "priority '" + std::string(priority) + "' must be 'high', 'normal' or 'low'"}};
}

SubmitOptions submit_options(double timeout_s, const py::bytes& notify, std::string_view priority) {
  SubmitOptions options;
  options.timeout = to_milliseconds(timeout_s);
  options.notify = std::string(notify);
  options.priority = parse_priority(priority);
  return options;
}

std::shared_ptr<Transfer> submit(Engine& self, const std::shared_ptr<Plan>& plan, double timeout_s,
                                 const py::bytes& notify, std::string_view priority) {
  SubmitOptions options = submit_options(timeout_s, notify, priority);
  const GilRelease unlocked;
  return unwrap(self.submit(plan, std::move(options)));
}

// Python's signal handlers run, and may raise (Ctrl-C), while it waits; then the transfer is cancelled.
std::shared_ptr<Transfer> execute(Engine& self, const std::shared_ptr<Plan>& plan, double timeout_s,
                                  const py::bytes& notify, std::string_view priority) {
  SubmitOptions options = submit_options(timeout_s, notify, priority);
  std::optional<py::error_already_set> raised;
  options.give_up = [&raised] {
    const py::gil_scoped_acquire locked;
    if (!raised && PyErr_CheckSignals() != 0) raised.emplace();
    return raised.has_value();
  };
  std::shared_ptr<Transfer> transfer;
  {
    const GilRelease unlocked;
    transfer = unwrap(self.execute(plan, std::move(options)));
  }
  if (raised) throw py::error_already_set(*raised);
  return transfer;
}

void send(Engine& self, std::uint64_t peer, const py::bytes& body, double timeout_s) {
  const std::string copy(body);
  const GilRelease unlocked;
  check(self.send(peer, copy, to_milliseconds(timeout_s)));
}

std::optional<std::shared_ptr<Peer>> find_peer(Engine& self, std::uint64_t handle) {
  std::shared_ptr<Peer> peer = self.peer(handle);
  if (!peer) return std::nullopt;
  return peer;
}

void bind_message(py::module_& module) {
  py::class_<Message>(module, "Message", "A control message from a peer. Immutable.")
      .def_readonly("peer", &Message::peer, "Handle of the peer: answer with Engine.send.")
      .def_property_readonly("body", [](const Message& self) { return py::bytes(self.body); });
}

void bind_memory(EngineClass& cls, Blocking& blocking) {
  blocking.def(cls, "register_address", &register_address, py::arg("address"), py::arg("length_bytes"), py::arg("name"),
               py::arg("access"), py::arg("kind"));
  blocking.def(cls, "allocate", &allocate, py::arg("length_bytes"), py::arg("name"), py::arg("access"));
  cls.def("open_file", &open_file, py::arg("path"), py::arg("length_bytes"), py::arg("create"), py::arg("access"),
          py::arg("direct"), py::arg("sync"));
  blocking.note("Engine.open_file");
  cls.def(
      "file_note",
      [](Engine& self, std::uint32_t id, std::uint32_t generation) {
        return text(unwrap(self.file_note({id, generation})));
      },
      py::arg("id"), py::arg("generation"));
  blocking.def(
      cls, "unregister",
      [](Engine& self, std::uint32_t id, std::uint32_t generation, double timeout_s) {
        check(self.unregister({id, generation}, to_milliseconds(timeout_s)));
      },
      py::arg("id"), py::arg("generation"), py::arg("timeout_s"));
  cls.def(
      "set_metadata", [](Engine& self, const py::bytes& metadata) { check(self.set_metadata(std::string(metadata))); },
      py::arg("metadata"));
}

void bind_traffic(EngineClass& cls, Blocking& blocking) {
  blocking.def(cls, "connect", &connect, py::arg("endpoint"), py::arg("expected"), py::arg("timeout_s"));
  cls.def("prepare", &prepare, py::arg("peer"), py::arg("pieces"), py::arg("op"));
  blocking.note("Engine.prepare");
  cls.def("prepare_blocks", &prepare_blocks, py::arg("peer"), py::arg("op"), py::arg("local"), py::arg("remote"),
          py::arg("local_index"), py::arg("remote_index"));
  blocking.note("Engine.prepare_blocks");
  cls.def("submit", &submit, py::arg("plan"), py::arg("timeout_s"), py::arg("notify"), py::arg("priority"));
  blocking.note("Engine.submit");
  cls.def("execute", &execute, py::arg("plan"), py::arg("timeout_s"), py::arg("notify"), py::arg("priority"));
  blocking.note("Engine.execute");
  cls.def("send", &send, py::arg("peer"), py::arg("body"), py::arg("timeout_s"));
  blocking.note("Engine.send");
  blocking.def(
      cls, "next_message", [](Engine& self, double timeout_s) { return self.next_message(to_milliseconds(timeout_s)); },
      py::arg("timeout_s"));
}

}  // namespace

void bind_engine(py::module_& module, Blocking& blocking) {
  module.def("buffer_address", &buffer_address, py::arg("buffer"), "Address of a contiguous buffer's first byte.");
  bind_message(module);
  EngineClass cls(module, "Engine");
  cls.def(py::init(&create), py::arg("options"))
      .def_property_readonly("node_id", [](const Engine& self) { return self.node_id().to_string(); })
      .def_property_readonly("endpoint", &Engine::endpoint)
      .def("self", &Engine::self)
      .def("peer", &find_peer, py::arg("handle"))
      .def("peers", &Engine::peers)
      .def("counters", &Engine::counters);
  blocking.note("Engine.__init__");
  bind_memory(cls, blocking);
  bind_traffic(cls, blocking);
  blocking.def(cls, "close", [](Engine& self) { self.close(); });
}

}  // namespace kvferry::python
