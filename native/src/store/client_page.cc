#include "store/client_page.h"

#include <bit>
#include <iterator>

namespace kvferry::store {

// The lowest free entry, so that the node has few to look at.
std::optional<std::uint32_t> ClientPage::enter(std::uint64_t word) {
  for (std::uint32_t group = 0; group < taken_.size(); ++group) {
    std::uint64_t taken = taken_[group].load(std::memory_order_relaxed);
    while (taken != UINT64_MAX) {
      const auto bit = static_cast<std::uint32_t>(std::countr_one(taken));
      if (!taken_[group].compare_exchange_weak(taken, taken | 1ull << bit, std::memory_order_acquire)) continue;
      const std::uint32_t entry = group * 64 + bit;
      raise_high_water(entry + 1);
      page_.entries[entry].store(word, std::memory_order_seq_cst);
      return entry;
    }
  }
  return std::nullopt;
}

void ClientPage::raise_high_water(std::uint32_t entries) {
  std::uint32_t now = page_.high_water.load(std::memory_order_relaxed);
  while (now < entries && !page_.high_water.compare_exchange_weak(now, entries, std::memory_order_seq_cst)) {
  }
}

void ClientPage::leave(std::uint32_t entry) {
  // Release: what was read under the pin was read before.
  page_.entries[entry].store(0, std::memory_order_release);
  taken_[entry / 64].fetch_and(~(1ull << entry % 64), std::memory_order_release);
}

bool ClientPage::in_use(std::uint32_t entry) const {
  return entry < kPinEntries && (taken_[entry / 64].load(std::memory_order_relaxed) >> entry % 64 & 1) != 0;
}

bool ClientPage::begin_writing(std::uint64_t session) {
  page_.writing[session % std::size(page_.writing)].fetch_add(1, std::memory_order_seq_cst);
  if (page_.fenced.load(std::memory_order_seq_cst) < session) return true;
  end_writing(session);
  return false;
}

void ClientPage::end_writing(std::uint64_t session) {
  page_.writing[session % std::size(page_.writing)].fetch_sub(1, std::memory_order_release);
}

void ClientPage::note_access(std::uint32_t slot) {
  const std::uint32_t note = page_.notes.fetch_add(1, std::memory_order_acq_rel);
  page_.accessed[note % kAccessNotes].store(slot + 1, std::memory_order_relaxed);
}

}  // namespace kvferry::store
