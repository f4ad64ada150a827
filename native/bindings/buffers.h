// Buffers that Python hands over: arrays of pieces and of block indices, and memory to register.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "kvferry/engine.h"

namespace kvferry::python {

// Columns: local region, remote region, local offset, remote offset, length.
// Throws StatusError (kInvalidArgument) if the shape, type or order is another, or an id is above 32 bits.
std::vector<Piece> read_pieces(const pybind11::buffer& array);

// A one-dimensional, dense int32 array. Copied, so that nobody can change an index after it was checked. Throws as
// read_pieces(); `name` says which argument it is.
std::vector<std::int32_t> read_indices(const pybind11::buffer& array, const char* name);

// Where a contiguous buffer's bytes begin. BufferError if it is not contiguous.
std::uintptr_t buffer_address(const pybind11::object& buffer);

}  // namespace kvferry::python
