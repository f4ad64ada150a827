// Every fixed bound of the native code in one place. Those marked (wire) are part of the wire format.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace kvferry {

inline constexpr std::uint32_t kMaxRegions = 3072;                   // (wire) region ids are 1..kMaxRegions
inline constexpr std::size_t kMaxRegionNameBytes = 255;              // (wire)
inline constexpr std::size_t kMaxMetadataBytes = 64u << 10;          // (wire)
inline constexpr std::size_t kMaxMessageBytes = 1u << 20;            // (wire) body of one user message
inline constexpr std::size_t kMaxBodyBytes = (1u << 20) + 4096;      // (wire) body of any frame
inline constexpr std::size_t kMaxErrorTextBytes = 1024;              // (wire)
inline constexpr std::size_t kMaxEndpointBytes = 255;                // (wire)
inline constexpr std::size_t kMaxHelloBytes = 2048;                  // (wire) body of HELLO and HELLO_ACK
inline constexpr std::uint32_t kMaxRails = 8;                        // (wire) addresses of one node for data
inline constexpr std::size_t kMaxRailEndpointBytes = 80;             // (wire)
inline constexpr std::uint32_t kMaxPiecesPerRequest = 512;           // (wire)
inline constexpr std::uint64_t kMaxRequestPayloadBytes = 16u << 20;  // (wire) raw bytes that follow one frame
inline constexpr std::uint32_t kMaxListSlots = 4096;                 // (wire) remembered lists of one data connection
inline constexpr std::size_t kMaxListPieces = 65536;                 // (wire) pieces in all of them together
inline constexpr std::size_t kMinSecretBytes = 16;
inline constexpr std::size_t kMaxFdsPerFrame = 4;     // (wire) descriptors that ride one frame
inline constexpr std::uint32_t kMaxArenas = 1024;     // (wire) arena indices are 1..kMaxArenas
inline constexpr std::uint32_t kMaxAttachLanes = 16;  // copying threads of one shm attachment
inline constexpr std::chrono::milliseconds kHandshakeTimeout{5000};

}  // namespace kvferry
