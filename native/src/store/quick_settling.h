// LocalStoreImpl::QuickDoor, for the files that make objects visible.
#pragma once

#include "store/local_store_impl.h"

namespace kvferry::store {

class LocalStoreImpl::QuickDoor {
 public:
  // Under the store's lock, all the time.
  explicit QuickDoor(LocalStoreImpl& store) : store_(store), locked_(store.quick_.is_open()) {
    if (!locked_) return;
    for (QuickPuts::Put& put : store_.quick_.lock()) store_.take_in(put);
  }
  ~QuickDoor() {
    if (locked_) store_.quick_.unlock();
  }
  QuickDoor(const QuickDoor&) = delete;
  QuickDoor& operator=(const QuickDoor&) = delete;

 private:
  LocalStoreImpl& store_;
  const bool locked_;
};

}  // namespace kvferry::store
