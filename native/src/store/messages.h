// What clients and nodes of the store say to each other: bodies of the engine's MESSAGE frames, byte by byte in
// docs/store-protocol.md. Values only. encode and decode are in one place (`fields`), decode is strict: kProtocolError.
//
// A body is at most 1 MiB: the sender splits what is longer (the kMax... below make sure that an answer fits, too).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kvferry/store.h"
#include "store/codec.h"
#include "store/local_store.h"

namespace kvferry::store {

inline constexpr std::uint32_t kMessageMagic = 0x3153564B;  // "KVS1" in memory order
inline constexpr std::uint8_t kMessageVersion = 1;
inline constexpr std::size_t kMessageHeaderBytes = 16;

inline constexpr std::size_t kMaxIds = 8192;       // in one request about ids
inline constexpr std::size_t kMaxObjects = 128;    // in one request that describes objects, or whose answer does
inline constexpr std::size_t kMaxPutFrom = 32;     // in one PutFrom
inline constexpr std::size_t kMaxPlaces = 8;       // of one object
inline constexpr std::size_t kMaxPutPieces = 512;  // of one object in a PutFrom
inline constexpr std::size_t kMaxMembers = 1024;
inline constexpr std::size_t kMaxRegionsOfNode = 256;
inline constexpr std::size_t kMaxListed = 65536;
inline constexpr std::uint64_t kMaxInlineBytes = 256u << 10;  // of values in one request, and of each one in an answer
inline constexpr std::size_t kMaxClusterBytes = 255;
inline constexpr std::uint32_t kNoPage = UINT32_MAX;

enum class Type : std::uint8_t {
  kAttach = 1,
  kDetach,
  kMemberList,
  kMembers,
  kPing,
  kPutInline,
  kReserve,
  kCommit,
  kAbort,
  kPutFrom,
  kGetInline,
  kPin,
  kUnpin,
  kLookup,
  kExists,
  kMatch,
  kFind,
  kAnnounce,
  kRetract,
  kRemove,
  kDrop,
  kPull,
  kPrefetch,
  kList,
  kWithTag,
  kStats,
  kDrain,
  kRemoved,
  kLast = kRemoved,
};
std::string_view type_name(Type type);

// Each message lists its fields once: KVF_FIELDS(a list of calls on `codec`, of members of `self`).
#define KVF_FIELDS(...)                          \
  template <typename Codec, typename Self>       \
  static void fields(Codec& codec, Self& self) { \
    (void)codec, (void)self;                     \
    __VA_ARGS__;                                 \
  }

struct None {  // no fields
  KVF_FIELDS()
};

// ---- sessions and membership

// The members as one node knows them. Sent on by a node whenever they change; not answered.
struct MemberList {
  static constexpr Type kType = Type::kMemberList;
  using Answer = None;
  std::uint64_t number = 0;
  std::vector<Member> members;
  KVF_FIELDS(codec.field(self.number), codec.list(self.members, kMaxMembers))
};

// First request on a connection; without it only Ping, Members and Stats are answered.
struct Attach {
  static constexpr Type kType = Type::kAttach;
  enum class Who : std::uint8_t { kClient = 0, kNode = 1, kLast = kNode };
  std::string cluster;  // kPermissionDenied unless it is the node's
  Who who = Who::kClient;
  NodeId home;                      // a client: the node of its host, if it is attached to one; a node: itself
  std::uint32_t pid = 0;            // a client that asks for shared memory: its process,
  std::uint64_t process_start = 0;  // and when that began (see store/process.h)
  bool shared_memory = false;       // asks for a page and the node's regions; same host only
  // A session that this client had with the node before, 0: none. The client vouches that none of its threads writes
  // to that session's reservations any more.
  std::uint64_t ended_session = 0;
  std::uint32_t default_replicas = 0;  // a node: its own; must be equal within a cluster
  struct Answer {
    NodeId node;
    std::uint64_t session = 0;
    std::uint32_t page = kNoPage;  // of `pins`; kNoPage: shared memory was not asked for
    RegionKey index, pins;         // regions of the node, to be mapped by Peer::map
    std::vector<RegionKey> arenas;
    std::uint32_t default_replicas = 1;
    milliseconds suspect_after{0};
    milliseconds pin_lease{0};
    MemberList view;
    KVF_FIELDS(codec.all(self.node, self.session, self.page, self.index, self.pins),
               codec.list(self.arenas, kMaxRegionsOfNode),
               codec.all(self.default_replicas, self.suspect_after, self.pin_lease, self.view))
  };
  KVF_FIELDS(codec.text(self.cluster, kMaxClusterBytes),
             codec.all(self.who, self.home, self.pid, self.process_start, self.shared_memory, self.ended_session,
                       self.default_replicas))
};

// The client leaves; it neither reads in place nor writes to reservations any more.
struct Detach {
  static constexpr Type kType = Type::kDetach;
  using Answer = None;
  KVF_FIELDS()
};

struct Members {  // asks for the MemberList
  static constexpr Type kType = Type::kMembers;
  using Answer = MemberList;
  KVF_FIELDS()
};

struct Ping {
  static constexpr Type kType = Type::kPing;
  struct Answer {
    std::uint64_t view = 0;      // fingerprint of the members that the node knows: see rendezvous.h
    bool settled = false;        // all of them that answer have told it all that they hold and it owns
    bool counts_on_you = false;  // it is connected to the node that asks, and was told all by it
    KVF_FIELDS(codec.all(self.view, self.settled, self.counts_on_you))
  };
  KVF_FIELDS()
};

// ---- puts

struct PutDone {  // of one object, in the order of the request
  Status status;  // kConflict: other bytes are stored under that key
  bool created = false;
  std::uint32_t replicas = 0;  // known to exist now
  KVF_FIELDS(codec.all(self.status, self.created, self.replicas))
};
struct PutAnswer {
  std::vector<PutDone> results;
  KVF_FIELDS(codec.list(self.results, kMaxObjects))
};

struct PutInline {
  static constexpr Type kType = Type::kPutInline;
  using Answer = PutAnswer;
  struct Item {
    NewObject object;
    ContentDigest digest;  // checked: kDataCorrupt
    ByteView value;        // after decoding: in the body
    KVF_FIELDS(codec.all(self.object, self.digest), codec.value(self.value))
  };
  std::vector<Item> items;  // values of kMaxInlineBytes in all
  KVF_FIELDS(codec.list(self.items, kMaxObjects))
};

// Memory to be written in place, by a client that has the arenas mapped.
struct Reserve {
  static constexpr Type kType = Type::kReserve;
  struct Done {
    Status status;
    std::optional<Held> existing;  // there already, nothing was reserved; compare the digest
    std::uint64_t put = 0;
    std::vector<Place> places;
    KVF_FIELDS(codec.field(self.status), codec.maybe(self.existing), codec.field(self.put),
               codec.list(self.places, kMaxPlaces))
  };
  struct Answer {
    std::vector<Done> results;
    KVF_FIELDS(codec.list(self.results, kMaxObjects))
  };
  std::vector<NewObject> objects;
  KVF_FIELDS(codec.list(self.objects, kMaxObjects))
};

struct Commit {
  static constexpr Type kType = Type::kCommit;
  using Answer = PutAnswer;
  struct Item {
    std::uint64_t put = 0;
    ContentDigest digest;
    KVF_FIELDS(codec.all(self.put, self.digest))
  };
  std::vector<Item> items;
  KVF_FIELDS(codec.list(self.items, kMaxObjects))
};

struct Abort {
  static constexpr Type kType = Type::kAbort;
  using Answer = None;
  std::vector<std::uint64_t> puts;
  KVF_FIELDS(codec.list(self.puts, kMaxObjects))
};

// The node reads the bytes out of the sender's registered memory (the sum of the pieces is the object's size), so that
// no write can come late. The memory is free again when the answer is there, or the connection is closed and its
// regions are unregistered.
struct PutFrom {
  static constexpr Type kType = Type::kPutFrom;
  using Answer = PutAnswer;
  struct Item {
    NewObject object;
    std::vector<wire::PieceDescriptor> pieces;
    // Of the bytes, if the sender knows: checked (kDataCorrupt). Without it an object that is there already cannot be
    // compared: kInvalidArgument.
    std::optional<ContentDigest> digest;
    KVF_FIELDS(codec.field(self.object), codec.list(self.pieces, kMaxPutPieces), codec.maybe(self.digest))
  };
  std::vector<Item> items;
  KVF_FIELDS(codec.list(self.items, kMaxPutFrom))
};

// ---- gets

struct GetInline {
  static constexpr Type kType = Type::kGetInline;
  struct Item {
    ObjectId id;
    std::uint64_t offset = 0;
    std::uint64_t length = UINT64_MAX;  // more than there is: up to the end
    KVF_FIELDS(codec.all(self.id, self.offset, self.length))
  };
  struct Done {
    Status status;  // kNotFound; kResourceExhausted: too long for this answer, pin it (`held` is set)
    Held held;
    ByteView value;
    KVF_FIELDS(codec.all(self.status, self.held), codec.value(self.value))
  };
  struct Answer {
    std::vector<Done> results;
    KVF_FIELDS(codec.list(self.results, kMaxIds))
  };
  std::vector<Item> items;
  KVF_FIELDS(codec.list(self.items, kMaxIds))
};

// Read the places one-sidedly, then Unpin; right only if that says that the pin was held all along.
struct Pin {
  static constexpr Type kType = Type::kPin;
  struct Done {
    Status status;
    std::uint64_t pin = 0;
    Held held;
    std::vector<wire::PieceDescriptor> places;
    std::optional<NewObject> object;  // if asked for
    KVF_FIELDS(codec.all(self.status, self.pin, self.held), codec.list(self.places, kMaxPlaces),
               codec.maybe(self.object))
  };
  struct Answer {
    std::vector<Done> results;
    KVF_FIELDS(codec.list(self.results, kMaxObjects))
  };
  std::vector<ObjectId> ids;
  bool describe = false;
  KVF_FIELDS(codec.list(self.ids, kMaxObjects), codec.field(self.describe))
};

struct Unpin {
  static constexpr Type kType = Type::kUnpin;
  struct Answer {
    std::vector<bool> held;  // false: the lease had ended, what was read may be wrong
    template <typename Codec, typename Self>
    static void fields(Codec& codec, Self& self) {
      codec.list(self.held, kMaxObjects);
    }
  };
  std::vector<std::uint64_t> pins;
  KVF_FIELDS(codec.list(self.pins, kMaxObjects))
};

// ---- where things are: asked of the ids' owner

struct Lookup {
  static constexpr Type kType = Type::kLookup;
  struct Done {
    bool found = false;
    std::uint64_t bytes = 0;
    ContentDigest digest;
    std::vector<std::uint16_t> holders;  // indices into `nodes`, best first
    bool has_value = false;              // the node asked holds it, and it is small: this is it
    ByteView value;
    KVF_FIELDS(codec.all(self.found, self.bytes, self.digest), codec.list(self.holders, kMaxMembers),
               codec.field(self.has_value), codec.value(self.value))
  };
  struct Answer {
    std::uint64_t view = 0;  // as in Ping. A node that may not know all asks the others before it answers.
    std::vector<NodeId> nodes;
    std::vector<Done> results;
    KVF_FIELDS(codec.field(self.view), codec.list(self.nodes, kMaxMembers), codec.list(self.results, kMaxIds))
  };
  std::vector<ObjectId> ids;
  std::uint32_t inline_bytes = 0;  // values up to this size come with the answer, while it has room
  KVF_FIELDS(codec.list(self.ids, kMaxIds), codec.field(self.inline_bytes))
};

struct Exists {
  static constexpr Type kType = Type::kExists;
  struct Answer {
    std::uint64_t view = 0;
    std::vector<bool> found;
    KVF_FIELDS(codec.field(self.view), codec.list(self.found, kMaxIds))
  };
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxIds))
};

struct Match {  // of ids that are all the node's: how many from the first on are there
  static constexpr Type kType = Type::kMatch;
  struct Answer {
    std::uint64_t view = 0;
    std::uint32_t count = 0;
    KVF_FIELDS(codec.all(self.view, self.count))
  };
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxIds))
};

struct Find {  // what the node itself holds
  static constexpr Type kType = Type::kFind;
  struct Done {
    std::optional<Held> held;
    bool pending = false;  // announced, or being announced, and not visible yet
    KVF_FIELDS(codec.maybe(self.held), codec.field(self.pending))
  };
  struct Answer {
    std::vector<Done> results;
    KVF_FIELDS(codec.list(self.results, kMaxIds))
  };
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxIds))
};

// ---- between nodes

struct Announce {  // a holder to the owner of the ids
  static constexpr Type kType = Type::kAnnounce;
  // kTakenAgain: it had been removed, so that whoever missed the put may say that it is removed.
  enum class Said : std::uint8_t { kTaken = 0, kConflict = 1, kRemoved = 2, kTakenAgain = 3, kLast = kTakenAgain };
  struct Item {
    ObjectId id;
    ContentDigest digest;
    std::uint64_t bytes = 0;
    std::uint8_t replicas = 1;  // wanted
    KVF_FIELDS(codec.all(self.id, self.digest, self.bytes, self.replicas))
  };
  struct Done {
    Said said = Said::kTaken;  // kConflict, kRemoved: the holder drops it
    std::uint8_t holders = 0;  // known, the sender included
    KVF_FIELDS(codec.all(self.said, self.holders))
  };
  struct Answer {
    std::vector<Done> results;
    KVF_FIELDS(codec.list(self.results, kMaxIds))
  };
  static constexpr std::uint64_t kTellsAll = UINT64_MAX;
  static constexpr std::uint64_t kChanges = UINT64_MAX - 1;
  bool fresh = false;  // just put: also what was removed before may be there again
  // Not 0: the sender has announced all that it must for these members; kTellsAll: it begins to announce all; kChanges:
  // it is about to know other members, and to announce what is put to the owners among those.
  std::uint64_t settled_view = 0;
  std::vector<Item> items;
  // Held, not fresh, and put after they had been removed: the receiver, which says that they are removed, missed that.
  bool put_again = false;
  KVF_FIELDS(codec.all(self.fresh, self.settled_view), codec.list(self.items, kMaxIds), codec.field(self.put_again))
};

struct Retract {  // a holder to the owner: it holds these no more
  static constexpr Type kType = Type::kRetract;
  using Answer = None;
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxIds))
};

struct Statuses {
  std::vector<Status> results;
  KVF_FIELDS(codec.list(self.results, kMaxIds))
};

struct Remove {  // to the owner, which has all holders drop them
  static constexpr Type kType = Type::kRemove;
  using Answer = Statuses;  // kUnavailable: names nodes that may still hold it
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxObjects))
};

struct Drop {  // owner to holder
  static constexpr Type kType = Type::kDrop;
  using Answer = None;
  std::vector<ObjectId> ids;
  KVF_FIELDS(codec.list(self.ids, kMaxIds))
};

struct Removed {  // what was removed lately, so that it stays so
  static constexpr Type kType = Type::kRemoved;
  using Answer = None;
  enum class To : std::uint8_t {
    kKeep = 0,   // from the owner, for the case that it dies
    kOwner = 1,  // to the owner, from whoever owned them before
    kLast = kOwner
  };
  struct Item {
    ObjectId id;
    milliseconds ago{0};
    bool again = false;  // and it was put since
    KVF_FIELDS(codec.all(self.id, self.ago, self.again))
  };
  To to = To::kKeep;
  std::vector<Item> items;  // in order
  KVF_FIELDS(codec.field(self.to), codec.list(self.items, kMaxIds))
};

// The node asked fetches the objects into its memory. The one primitive of replication, repair, drain, demotion and of
// a client that wants to read in place.
struct Pull {
  static constexpr Type kType = Type::kPull;
  using Answer = Statuses;  // OK also if it had them
  NodeId source;            // nil: wherever they are
  std::vector<ObjectId> ids;
  bool extra = false;         // as NewObject::extra
  bool only_if_room = false;  // kResourceExhausted rather than evict for it
  milliseconds timeout{0};
  KVF_FIELDS(codec.field(self.source), codec.list(self.ids, kMaxObjects),
             codec.all(self.extra, self.only_if_room, self.timeout))
};

// ---- of clients and administrators

struct Prefetch {  // answered at once
  static constexpr Type kType = Type::kPrefetch;
  using Answer = None;
  std::vector<ObjectId> ids;
  milliseconds within{0};
  KVF_FIELDS(codec.list(self.ids, kMaxIds), codec.field(self.within))
};

struct List {  // of what the node holds, sorted by key
  static constexpr Type kType = Type::kList;
  struct Answer {
    std::vector<ObjectInfo> objects;
    bool more = false;  // cut to what fits a message: ask again after the last one
    KVF_FIELDS(codec.list(self.objects, kMaxListed), codec.field(self.more))
  };
  std::string tenant, prefix, after;
  std::uint32_t limit = 0;
  KVF_FIELDS(codec.text(self.tenant, kMaxTenantBytes), codec.text(self.prefix, kMaxKeyBytes),
             codec.text(self.after, kMaxKeyBytes), codec.field(self.limit))
};

struct WithTag {  // of what the node holds, sorted by id
  static constexpr Type kType = Type::kWithTag;
  struct Answer {
    std::vector<ObjectId> ids;
    bool more = false;
    KVF_FIELDS(codec.list(self.ids, kMaxIds), codec.field(self.more))
  };
  std::string tenant, tag;
  ObjectId after;  // nil: from the first on
  KVF_FIELDS(codec.text(self.tenant, kMaxTenantBytes), codec.text(self.tag, 255), codec.field(self.after))
};

struct Stats {
  static constexpr Type kType = Type::kStats;
  using Answer = NodeStats;
  KVF_FIELDS()
};

struct Drain {
  static constexpr Type kType = Type::kDrain;
  struct Answer {
    std::uint64_t left = 0;
    KVF_FIELDS(codec.field(self.left))
  };
  milliseconds timeout{0};
  KVF_FIELDS(codec.field(self.timeout))
};

#undef KVF_FIELDS

// All requests, for whoever needs code for each of them.
#define KVF_STORE_REQUESTS(APPLY) \
  APPLY(Attach)                   \
  APPLY(Detach)                   \
  APPLY(MemberList)               \
  APPLY(Members)                  \
  APPLY(Ping)                     \
  APPLY(PutInline)                \
  APPLY(Reserve)                  \
  APPLY(Commit)                   \
  APPLY(Abort)                    \
  APPLY(PutFrom)                  \
  APPLY(GetInline)                \
  APPLY(Pin)                      \
  APPLY(Unpin)                    \
  APPLY(Lookup)                   \
  APPLY(Exists)                   \
  APPLY(Match)                    \
  APPLY(Find)                     \
  APPLY(Announce)                 \
  APPLY(Retract)                  \
  APPLY(Remove)                   \
  APPLY(Drop)                     \
  APPLY(Pull)                     \
  APPLY(Prefetch)                 \
  APPLY(List)                     \
  APPLY(WithTag)                  \
  APPLY(Stats)                    \
  APPLY(Drain)                    \
  APPLY(Removed)

struct MessageHeader {
  Type type = Type::kPing;
  bool is_answer = false;
  std::uint64_t request_id = 0;  // 0: no answer is wanted
};

bool is_store_message(ByteView body);  // begins with the magic
// kProtocolError; kUnsupported for another version.
Result<MessageHeader> decode_header(ByteView body);

template <typename Request>
Bytes encode_request(std::uint64_t request_id, const Request& request);
template <typename Request>
Result<Request> decode_request(ByteView body);
// An answer begins with its status; there are no more fields unless that is OK.
template <typename Request>
Bytes encode_answer(std::uint64_t request_id, const Result<typename Request::Answer>& answer);
template <typename Request>
Result<typename Request::Answer> decode_answer(ByteView body);
Bytes encode_refusal(const MessageHeader& request, const Status& why);

}  // namespace kvferry::store
