// Buffers that Python hands over: the uint64 [n, 5] array of pieces, and memory to register.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "kvferry/engine.h"

namespace kvferry::python {

// Columns: local region, remote region, local offset, remote offset, length. Reads the caller's memory in place.
// Throws StatusError (kInvalidArgument) if the shape, type or order is another, or an id is above 32 bits.
std::vector<Piece> read_pieces(const pybind11::buffer& array);

// Where a contiguous buffer's bytes begin. BufferError if it is not contiguous.
std::uintptr_t buffer_address(const pybind11::object& buffer);

}  // namespace kvferry::python
