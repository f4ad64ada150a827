// kvferry::store::Node for kvferry.store, which documents and checks.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <string>
#include <vector>

#include "base/fork_count.h"
#include "errors.h"
#include "kvferry/store.h"
#include "module.h"
#include "seconds.h"

namespace kvferry::python {
namespace {

using namespace kvferry::store;  // NOLINT: this file binds that namespace

struct NodeDeleter {  // joins threads: others may run meanwhile
  std::uint64_t forks = fork_count();
  void operator()(Node* node) const {
    if (fork_count() != forks) return;  // a forked child has none of the threads: nothing there can be ended
    const GilRelease unlocked;
    delete node;
  }
};
using NodeHolder = std::unique_ptr<Node, NodeDeleter>;

NodeHolder create(const NodeOptions& options) {
  const GilRelease unlocked;
  return NodeHolder(unwrap(Node::create(options)).release());
}

template <typename Enum, std::size_t N>
Enum parse(const std::pair<const char*, Enum> (&names)[N], const std::string& name, const char* what) {
  for (const auto& [text, value] : names) {
    if (name == text) return value;
  }
  throw StatusError{{Code::kInvalidArgument, std::string(what) + " '" + name + "' is not known"}};
}

constexpr std::pair<const char*, PolicyKind> kPolicies[] = {{"lru", PolicyKind::kLru},
                                                            {"lfu", PolicyKind::kLfu},
                                                            {"s3fifo", PolicyKind::kS3Fifo},
                                                            {"prefix", PolicyKind::kPrefix}};
constexpr std::pair<const char*, WriteMode> kWriteModes[] = {{"back", WriteMode::kWriteBack},
                                                             {"through", WriteMode::kWriteThrough}};
constexpr std::pair<const char*, SsdSync> kSyncs[] = {
    {"none", SsdSync::kNone}, {"segment", SsdSync::kEverySegment}, {"commit", SsdSync::kEveryCommit}};

template <milliseconds NodeOptions::*Field>
void def_seconds(py::class_<NodeOptions>& cls, const char* name) {
  cls.def_property(
      name, [](const NodeOptions& self) { return to_seconds(self.*Field); },
      [](NodeOptions& self, double seconds) { self.*Field = to_milliseconds(seconds); });
}

void bind_node_options(py::module_& module) {
  py::class_<NodeOptions> cls(module, "NodeOptions", "See kvferry.config.StoreOptions, which documents these.");
  cls.def(py::init<>())
      .def_readwrite("engine", &NodeOptions::engine)
      .def_readwrite("cluster", &NodeOptions::cluster)
      .def_readwrite("dram_bytes", &NodeOptions::dram_bytes)
      .def_readwrite("max_objects", &NodeOptions::max_objects)
      .def_readwrite("watermark_high", &NodeOptions::watermark_high)
      .def_readwrite("watermark_low", &NodeOptions::watermark_low)
      .def_readwrite("ssd_directory", &NodeOptions::ssd_directory)
      .def_readwrite("ssd_bytes", &NodeOptions::ssd_bytes)
      .def_readwrite("demote_to_remote", &NodeOptions::demote_to_remote)
      .def_readwrite("default_replicas", &NodeOptions::default_replicas)
      .def_readwrite("hot_reads", &NodeOptions::hot_reads)
      .def("set_policy",
           [](NodeOptions& self, const std::string& name) { self.policy = parse(kPolicies, name, "policy"); })
      .def("set_ssd_policy",
           [](NodeOptions& self, const std::string& name) { self.ssd_policy = parse(kPolicies, name, "policy"); })
      .def("set_ssd_write",
           [](NodeOptions& self, const std::string& name) { self.ssd_write = parse(kWriteModes, name, "write mode"); })
      .def("set_ssd_sync",
           [](NodeOptions& self, const std::string& name) { self.ssd_sync = parse(kSyncs, name, "sync"); });
  def_seconds<&NodeOptions::hot_window>(cls, "hot_window_s");
  def_seconds<&NodeOptions::reservation_lease>(cls, "reservation_lease_s");
  def_seconds<&NodeOptions::pin_lease>(cls, "pin_lease_s");
  def_seconds<&NodeOptions::suspect_after>(cls, "suspect_after_s");
}

void bind_member(py::module_& module) {
  py::class_<Member>(module, "Member", "A node as the cluster's membership has it. Immutable.")
      .def(py::init([](const std::string& node_id, const Endpoint& endpoint, const std::string& host,
                       std::uint64_t dram_bytes) {
             return Member{unwrap(NodeId::parse(node_id)), endpoint, host, dram_bytes};
           }),
           py::arg("node_id"), py::arg("endpoint"), py::arg("host"), py::arg("dram_bytes"))
      .def_property_readonly("node_id", [](const Member& self) { return self.node_id.to_string(); })
      .def_readonly("endpoint", &Member::endpoint)
      .def_property_readonly("host", [](const Member& self) { return text(self.host); })
      .def_readonly("dram_bytes", &Member::dram_bytes)
      .def("__repr__", [](const Member& self) {
        return py::str("Member({} at {})").format(self.node_id.to_string(), self.endpoint.to_string());
      });
}

void bind_stats(py::module_& module) {
  py::class_<NodeStats>(module, "NodeStats", "What a node holds and has done. A snapshot; sizes in bytes.")
      .def_readonly("objects", &NodeStats::objects)
      .def_readonly("dram_objects", &NodeStats::dram_objects)
      .def_readonly("ssd_objects", &NodeStats::ssd_objects)
      .def_readonly("dram_bytes", &NodeStats::dram_bytes)
      .def_readonly("dram_used", &NodeStats::dram_used)
      .def_readonly("dram_largest_free", &NodeStats::dram_largest_free)
      .def_readonly("pinned_objects", &NodeStats::pinned_objects)
      .def_readonly("ssd_bytes", &NodeStats::ssd_bytes)
      .def_readonly("ssd_used", &NodeStats::ssd_used)
      .def_readonly("ssd_written", &NodeStats::ssd_written)
      .def_readonly("ssd_stored", &NodeStats::ssd_stored)
      .def_readonly("directory_entries", &NodeStats::directory_entries)
      .def_readonly("clients", &NodeStats::clients)
      .def_readonly("index_bytes", &NodeStats::index_bytes)
      .def_readonly("metadata_bytes", &NodeStats::metadata_bytes)
      .def_readonly("counters", &NodeStats::counters)
      .def_property_readonly("degraded", [](const NodeStats& self) {
        py::typing::List<py::str> reasons;
        for (const std::string& reason : self.degraded) reasons.append(text(reason));
        return reasons;
      });
}

// `callback` is called from a thread of the node's, which takes the interpreter lock for it.
std::function<void(const NodeId&)> told(py::typing::Callable<void(std::string)> callback, const char* what) {
  const auto shared = std::shared_ptr<py::function>(new py::function(std::move(callback)), [](py::function* function) {
    const py::gil_scoped_acquire locked;
    delete function;
  });
  return [shared, what](const NodeId& node) {
    const py::gil_scoped_acquire locked;
    try {
      (*shared)(node.to_string());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(what);
    }
  };
}

void on_suspect(Node& self, py::typing::Callable<void(std::string)> callback) {
  self.on_suspect(told(std::move(callback), "a callback of Node.on_suspect"));
}

void on_heard(Node& self, py::typing::Callable<void(std::string)> callback) {
  self.on_heard(told(std::move(callback), "a callback of Node.on_heard"));
}

}  // namespace

void bind_node(py::module_& module, Blocking& blocking) {
  bind_node_options(module);
  bind_member(module);
  bind_stats(module);
  py::class_<Node, NodeHolder> cls(module, "Node");
  cls.def(py::init(&create), py::arg("options"))
      .def_property_readonly("node_id", [](const Node& self) { return self.node_id().to_string(); })
      .def_property_readonly("endpoint", &Node::endpoint)
      .def("on_suspect", &on_suspect, py::arg("callback"))
      .def("on_heard", &on_heard, py::arg("callback"))
      .def("error", [](const Node& self) { return to_exception(self.status()); });
  blocking.note("Node.__init__");
  blocking.def(
      cls, "set_members",
      [](Node& self, std::uint64_t view, const std::vector<Member>& members) { self.set_members(view, members); },
      py::arg("view"), py::arg("members"));
  blocking.def(cls, "stats", &Node::stats);
  blocking.def(
      cls, "drain", [](Node& self, double timeout_s) { return unwrap(self.drain(to_milliseconds(timeout_s))); },
      py::arg("timeout_s"));
  blocking.def(cls, "close", [](Node& self) { self.close(); });
}

}  // namespace kvferry::python
