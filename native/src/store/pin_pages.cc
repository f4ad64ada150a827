#include "store/pin_pages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace kvferry::store {
namespace {

void clear(PinPage& page) {
  for (SharedWord& entry : page.entries) entry.store(0, std::memory_order_seq_cst);
  for (auto& note : page.accessed) note.store(0, std::memory_order_relaxed);
  page.notes.store(0, std::memory_order_relaxed);
  page.high_water.store(0, std::memory_order_seq_cst);
  for (SharedWord& writing : page.writing) writing.store(0, std::memory_order_seq_cst);
}

}  // namespace

PinPages::PinPages(std::span<std::byte> memory)
    : pages_(reinterpret_cast<PinPage*>(memory.data()), memory.size() / sizeof(PinPage)), table_(pages_.size()) {}

Result<std::uint32_t> PinPages::add(std::function<bool()> gone) {
  const auto free = std::find_if(table_.begin(), table_.end(), [](const Client& client) { return !client.gone; });
  if (free == table_.end()) {
    return {Code::kResourceExhausted, "the node has " + std::to_string(table_.size()) +
                                          " clients on this host, the most it can have; try again when one has left"};
  }
  const auto page = static_cast<std::uint32_t>(free - table_.begin());
  clear(pages_[page]);  // whatever its last client left or wrote since
  *free = {std::make_shared<const std::function<bool()>>(std::move(gone)), 0};
  ++clients_;
  return page;
}

// Of a client that begins to write and this, one sees the other.
bool PinPages::fence(std::uint32_t page, std::uint64_t session) {
  PinPage& of = pages_[page];
  std::uint64_t before = of.fenced.load(std::memory_order_seq_cst);
  while (before < session && !of.fenced.compare_exchange_weak(before, session, std::memory_order_seq_cst)) {
  }
  return of.writing[session % std::size(of.writing)].load(std::memory_order_seq_cst) == 0;
}

void PinPages::remove(std::uint32_t page) {
  if (page >= table_.size() || !table_[page].gone) return;
  clear(pages_[page]);
  table_[page] = {};
  --clients_;
}

void PinPages::collect(std::vector<std::uint64_t>& pinned) const {
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (!table_[i].gone) continue;
    const PinPage& page = pages_[i];
    // A client raises it before it writes an entry there.
    const std::uint32_t end = std::min(page.high_water.load(std::memory_order_seq_cst), kPinEntries);
    for (std::uint32_t entry = 0; entry < end; ++entry) {
      const std::uint64_t word = page.entries[entry].load(std::memory_order_seq_cst);
      if (word != 0) pinned.push_back(word);
    }
  }
}

void PinPages::drain_accesses(const std::function<void(std::uint32_t)>& accessed) {
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (!table_[i].gone) continue;
    PinPage& page = pages_[i];
    const std::uint32_t written = page.notes.load(std::memory_order_acquire);
    const std::uint32_t unseen = std::min(written - table_[i].notes_seen, kAccessNotes);
    for (std::uint32_t note = written - unseen; note != written; ++note) {
      const std::uint32_t slot = page.accessed[note % kAccessNotes].exchange(0, std::memory_order_relaxed);
      if (slot != 0) accessed(slot - 1);
    }
    table_[i].notes_seen = written;
  }
}

std::vector<PinPages::Watched> PinPages::watched() const {
  std::vector<Watched> all;
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].gone) all.push_back({static_cast<std::uint32_t>(i), table_[i].gone});
  }
  return all;
}

}  // namespace kvferry::store
