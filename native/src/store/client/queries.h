// Whether, where and what: questions about objects, and their end.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/client/core.h"

namespace kvferry::store {

Status exists(ClientCore& core, std::span<const ObjectId> ids, std::span<std::uint8_t> found, Deadline deadline);
Result<std::uint64_t> match_prefix(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline);
std::vector<Result<std::uint64_t>> sizes(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline);
std::vector<Status> remove(ClientCore& core, std::span<const ObjectId> ids, Deadline deadline);
Result<std::uint64_t> remove_tag(ClientCore& core, std::string_view tag, Deadline deadline);
Result<std::vector<ObjectInfo>> list(ClientCore& core, const List& request, Deadline deadline);

}  // namespace kvferry::store
