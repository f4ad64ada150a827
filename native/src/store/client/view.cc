#include <utility>

#include "kvferry/store.h"

namespace kvferry::store {

View::View(Contents contents)
    : pieces_(std::move(contents.pieces)),
      bytes_(contents.bytes),
      digest_(contents.digest),
      release_(std::move(contents.release)) {}

View::View(View&& other) noexcept
    : pieces_(std::exchange(other.pieces_, {})),
      bytes_(std::exchange(other.bytes_, 0)),
      digest_(other.digest_),
      release_(std::exchange(other.release_, nullptr)) {}

View& View::operator=(View&& other) noexcept {
  if (this == &other) return *this;
  release();
  pieces_ = std::exchange(other.pieces_, {});
  bytes_ = std::exchange(other.bytes_, 0);
  digest_ = other.digest_;
  release_ = std::exchange(other.release_, nullptr);
  return *this;
}

View::~View() { release(); }

void View::release() {
  pieces_.clear();
  if (const auto release = std::exchange(release_, nullptr)) release();
}

}  // namespace kvferry::store
