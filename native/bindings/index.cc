// Block keys and the chain index. Buffers of tokens and keys are used in place: each call holds them while it works.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "errors.h"
#include "held_buffer.h"
#include "kvferry/block_key.h"
#include "kvferry/chain_index.h"
#include "module.h"

namespace kvferry::python {
namespace {

using index::BlockKey;
using index::ChainIndex;
using index::ContentSpan;
using index::InstanceId;
using index::KeyAlgorithm;
using index::KeyIdentity;
using index::KeySpace;
using index::Search;
using Space = std::shared_ptr<const KeySpace>;

static_assert(sizeof(BlockKey) == 16 && alignof(BlockKey) == 1, "rows of a buffer are keys");

py::bytes as_bytes(const BlockKey& key) { return {reinterpret_cast<const char*>(key.bytes.data()), key.bytes.size()}; }

BlockKey as_key(const py::bytes& bytes) {
  const auto text = bytes.cast<std::string_view>();
  BlockKey key;
  if (text.size() != key.bytes.size()) {
    throw StatusError{{Code::kInvalidArgument, "a block key has 16 bytes, not " + std::to_string(text.size())}};
  }
  std::copy(text.begin(), text.end(), key.bytes.begin());
  return key;
}

using SpanTuple = std::tuple<std::int64_t, std::uint64_t, py::bytes>;

std::vector<ContentSpan> as_spans(const std::vector<SpanTuple>& tuples) {
  std::vector<ContentSpan> spans;
  spans.reserve(tuples.size());
  for (const auto& [first, tokens, id] : tuples) spans.push_back({first, tokens, id.cast<std::string>()});
  return spans;
}

using Fields = py::typing::Dict<py::str, py::object>;
template <typename T>
T field(const Fields& fields, const char* name) {
  try {
    return fields[name].cast<T>();
  } catch (const py::cast_error&) {
    throw StatusError{{Code::kInvalidArgument, std::string(name) + " of a block key's identity has the wrong type"}};
  }
}

using Extra = std::vector<std::pair<py::bytes, py::bytes>>;

Space make_space(const Fields& fields, const Extra& extra, const std::string& algorithm, const py::bytes& secret) {
  KeyIdentity id;
  const auto text = [&](const char* name) { return field<std::string>(fields, name); };
  const auto number = [&](const char* name) { return field<std::uint32_t>(fields, name); };
  id.model = text("model");
  id.revision = text("revision");
  id.geometry = text("geometry");
  id.dtype = text("dtype");
  id.layout = text("layout");
  id.block_tokens = number("block_tokens");
  id.tensor_parallel = number("tensor_parallel");
  id.group = number("group");
  id.lora = text("lora");
  id.salt = text("salt");
  id.tenant = text("tenant");
  for (const auto& [name, value] : extra) id.extra.emplace_back(name.cast<std::string>(), value.cast<std::string>());
  if (algorithm != "sha256" && algorithm != "xxh3") {
    throw StatusError{{Code::kInvalidArgument, "key algorithm '" + algorithm + "': neither sha256 nor xxh3"}};
  }
  return unwrap(KeySpace::create(id, algorithm == "xxh3" ? KeyAlgorithm::kXxh3 : KeyAlgorithm::kSha256,
                                 secret.cast<std::string_view>()));
}

// pybind11 keeps no pointers to const.
struct SpaceHandle {
  Space space;
};

void keys_into(const SpaceHandle& self, const py::bytes& parent, const py::object& tokens,
               const std::vector<SpanTuple>& spans, const py::object& out) {
  const HeldBuffer source(tokens, "tokens");
  const HeldBuffer target(out, "out", /*writable=*/true);
  const BlockKey before = as_key(parent);
  const std::vector<ContentSpan> contents = as_spans(spans);
  const auto numbers = source.of_int32();
  const auto keys = target.writable_rows<BlockKey>();
  const GilRelease others_run;
  check(self.space->keys(before, numbers, contents, keys));
}

void engine_keys_into(const SpaceHandle& self, const std::vector<py::bytes>& hashes, const py::object& out) {
  const HeldBuffer target(out, "out", /*writable=*/true);
  const auto keys = target.writable_rows<BlockKey>();
  if (keys.size() != hashes.size()) throw StatusError{{Code::kInvalidArgument, "out needs a row for each hash"}};
  std::vector<std::string_view> views;  // of bytes that `hashes` keeps
  views.reserve(hashes.size());
  for (const py::bytes& hash : hashes) views.push_back(hash.cast<std::string_view>());
  const GilRelease others_run;
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = self.space->of_engine_hash(std::as_bytes(std::span(views[i])));
}

// A KeyChain is for one thread; Python has none to spare for that promise.
struct Chain {
  std::mutex mutex;
  index::KeyChain chain;
  Chain(const SpaceHandle& handle, const py::bytes& parent, std::uint64_t position)
      : chain(handle.space, as_key(parent), position) {}
};

py::bytes extend(Chain& self, const py::object& tokens, const std::vector<SpanTuple>& spans) {
  const HeldBuffer source(tokens, "tokens");
  const auto numbers = source.of_int32();
  const std::vector<ContentSpan> contents = as_spans(spans);
  std::vector<BlockKey> keys;
  {
    const GilRelease others_run;
    const std::lock_guard lock(self.mutex);
    check(self.chain.extend(numbers, contents, keys));
  }
  return {reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(BlockKey)};
}

template <auto Getter>
auto under_lock(Chain& self) {
  const GilRelease others_run;
  const std::lock_guard lock(self.mutex);
  return (self.chain.*Getter)();
}

void bind_keys(py::module_& module, Blocking& blocking) {
  py::class_<SpaceHandle> space(module, "KeySpace", "See kvferry.index.KeySpace.");
  space.def(py::init([](const Fields& fields, const Extra& extra, const std::string& algorithm,
                        const py::bytes& secret) { return SpaceHandle{make_space(fields, extra, algorithm, secret)}; }),
            py::arg("fields"), py::arg("extra"), py::arg("algorithm"), py::arg("secret"));
  space.def_property_readonly("root", [](const SpaceHandle& self) { return as_bytes(self.space->root()); });
  space.def("keys", &keys_into, py::arg("parent"), py::arg("tokens"), py::arg("spans"), py::arg("out"));
  space.def("of_engine_hashes", &engine_keys_into, py::arg("hashes"), py::arg("out"));
  py::class_<Chain> chain(module, "KeyChain", "See kvferry.index.KeyChain.");
  chain.def(py::init<const SpaceHandle&, const py::bytes&, std::uint64_t>(), py::arg("space"), py::arg("parent"),
            py::arg("position"));
  chain.def("extend", &extend, py::arg("tokens"), py::arg("spans"));
  chain.def_property_readonly("last", [](Chain& self) { return as_bytes(under_lock<&index::KeyChain::last>(self)); });
  chain.def_property_readonly("position", &under_lock<&index::KeyChain::position>);
  chain.def_property_readonly("pending_tokens", &under_lock<&index::KeyChain::pending_tokens>);
  for (const char* name : {"KeySpace.keys", "KeySpace.of_engine_hashes", "KeyChain.extend"}) blocking.note(name);
}

Search search_of(bool closed) { return closed ? Search::kGallop : Search::kLinear; }

ChainIndex::Stored stored(ChainIndex& self, InstanceId instance, const std::optional<py::bytes>& parent,
                          const py::object& keys) {
  const HeldBuffer source(keys, "keys");
  const auto rows = source.rows<BlockKey>();
  const BlockKey before = parent ? as_key(*parent) : BlockKey{};
  const BlockKey* const given = parent ? &before : nullptr;
  const GilRelease others_run;
  return unwrap(self.stored(instance, given, rows));
}

std::size_t removed(ChainIndex& self, InstanceId instance, const py::object& keys) {
  const HeldBuffer source(keys, "keys");
  const auto rows = source.rows<BlockKey>();
  const GilRelease others_run;
  return unwrap(self.removed(instance, rows));
}

std::size_t match_prefix(const ChainIndex& self, const py::object& keys, bool closed) {
  const HeldBuffer source(keys, "keys");
  const auto rows = source.rows<BlockKey>();
  const GilRelease others_run;
  return self.match_prefix(rows, search_of(closed));
}

std::size_t match(const ChainIndex& self, const py::object& keys, const py::object& out, bool closed) {
  const HeldBuffer source(keys, "keys");
  const HeldBuffer target(out, "out", /*writable=*/true);
  const auto rows = source.rows<BlockKey>();
  const auto lengths = target.writable_rows<std::uint32_t>();
  if (lengths.size() != self.max_instances()) {
    throw StatusError{{Code::kInvalidArgument, "out needs a place for each instance"}};
  }
  const GilRelease others_run;
  return self.match(rows, lengths, search_of(closed));
}

void references(const ChainIndex& self, InstanceId instance, const py::object& keys, const py::object& out) {
  const HeldBuffer source(keys, "keys");
  const HeldBuffer target(out, "out", /*writable=*/true);
  const auto rows = source.rows<BlockKey>();
  const auto counts = target.writable_rows<std::uint32_t>();
  const GilRelease others_run;
  check(self.references(instance, rows, counts));
}

void bind_index_results(py::module_& module) {
  py::class_<ChainIndex::Stored>(module, "Stored", "What became of one event.")
      .def_readonly("added", &ChainIndex::Stored::added, "Blocks that the instance did not hold.")
      .def_readonly("repeated", &ChainIndex::Stored::repeated, "Blocks that it held already.")
      .def_readonly("refused", &ChainIndex::Stored::refused, "Blocks beyond the index's limit.")
      .def_readonly("parent_held", &ChainIndex::Stored::parent_held,
                    "False: the instance does not hold the parent, so an event got lost.");
  py::class_<ChainIndex::Stats>(module, "IndexStats", "A snapshot of an index.")
      .def_readonly("blocks", &ChainIndex::Stats::blocks, "Distinct blocks.")
      .def_readonly("memory_bytes", &ChainIndex::Stats::memory_bytes, "Of everything.")
      .def_readonly("repeats", &ChainIndex::Stats::repeats, "Pairs of block and instance with several references.")
      .def_readonly("held", &ChainIndex::Stats::held, "Blocks by instance.");
}

void bind_chain_index(py::module_& module, Blocking& blocking) {
  py::class_<ChainIndex> cls(module, "ChainIndex", "See kvferry.index.ChainIndex.");
  cls.def(py::init([](std::uint32_t max_instances, bool count_repeats, std::size_t max_blocks) {
            return std::make_unique<ChainIndex>(index::IndexOptions{max_instances, count_repeats, max_blocks});
          }),
          py::arg("max_instances"), py::arg("count_repeats"), py::arg("max_blocks"));
  cls.def_property_readonly("max_instances", &ChainIndex::max_instances);
  cls.def("stored", &stored, py::arg("instance"), py::arg("parent"), py::arg("keys"));
  cls.def("removed", &removed, py::arg("instance"), py::arg("keys"));
  cls.def("match_prefix", &match_prefix, py::arg("keys"), py::arg("closed"));
  cls.def("match", &match, py::arg("keys"), py::arg("out"), py::arg("closed"));
  cls.def("references", &references, py::arg("instance"), py::arg("keys"), py::arg("out"));
  blocking.def(
      cls, "cleared", [](ChainIndex& self, InstanceId instance) { return unwrap(self.cleared(instance)); },
      py::arg("instance"));
  blocking.def(cls, "stats", &ChainIndex::stats);
  cls.def(
      "holders",
      [](const ChainIndex& self, const py::bytes& bytes) {
        const BlockKey key = as_key(bytes);
        const GilRelease others_run;
        return self.holders(key);
      },
      py::arg("key"));
  for (const char* name : {"stored", "removed", "match_prefix", "match", "references", "holders"}) {
    blocking.note(std::string("ChainIndex.") + name);
  }
}

}  // namespace

void bind_index(py::module_& module, Blocking& blocking) {
  bind_keys(module, blocking);
  bind_index_results(module);
  bind_chain_index(module, blocking);
}

}  // namespace kvferry::python
