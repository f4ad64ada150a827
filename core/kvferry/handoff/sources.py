"""Which ranks of a prefill engine one rank of a decode engine reads from, and which bytes from each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvferry.errors import GeometryMismatchError, InvalidArgumentError
from kvferry.layout import KVGeometry, map_blocks, sources_of

if TYPE_CHECKING:
    from kvferry.handoff.consumer import LoadRequest
    from kvferry.handoff.params import LeaseAddress, StreamAddress
    from kvferry.handoff.peers import KnownPeer
    from kvferry.layout.mapping import Pieces


class Target(NamedTuple):
    """One rank of a prefill engine that we deal with; see `layout.Source` for the last four."""

    node_id: str
    endpoint: str
    rank: int
    reader: int
    readers: int
    reads: bool

    @property
    def node(self) -> tuple[str, str]:
        """What the peer book knows it by."""
        return self.node_id, self.endpoint


class SourceMap:
    """Answers for one rank of a decode engine. Immutable, thread-safe."""

    def __init__(self, geometry: KVGeometry, local_regions: Mapping[str, int]) -> None:
        self._geometry = geometry
        self._local_regions = local_regions

    def targets(self, address: LeaseAddress | StreamAddress) -> tuple[Target, ...]:
        """Return the ranks to read from, then those that only must be told that they are not needed.

        Raises InvalidArgumentError if our heads cannot be spread over that many ranks.
        """
        found = sources_of(self._geometry, address.tp_size, address.pp_size)
        return tuple(
            Target(address.node_ids[one.rank], address.endpoints[one.rank], *one)
            for one in sorted(found, key=lambda one: not one.reads)
        )

    def pieces(self, request: LoadRequest, known: Mapping[Target, KnownPeer]) -> list[Pieces]:
        """Return what to copy from each of `known`, which are all ranks that are read from.

        Raises what `map_blocks` raises, GeometryMismatchError if a peer is not the rank that the request says
        or no rank holds one of our layers, and InvalidArgumentError if there is nothing to copy at all.
        """
        address = request.remote.address
        for target, peer in known.items():
            _check_rank(address, target, peer.cache)
        self._check_layers(peer.cache for peer in known.values())
        pieces = [self._from_one(request, peer) for peer in known.values()]
        if not any(len(part) for part in pieces):
            raise InvalidArgumentError(f"request {request.request_id} names no bytes to load")
        return pieces

    def _from_one(self, request: LoadRequest, peer: KnownPeer) -> Pieces:
        return map_blocks(
            self._geometry,
            peer.cache,
            request.local_block_ids,
            request.remote.block_ids,
            local_regions=self._local_regions,
            remote_regions=peer.regions,
            local_first_token=request.first_token,
            first_token=request.first_token,
            num_tokens=request.num_tokens,
            pad=True,
        )

    def _check_layers(self, caches: Iterable[KVGeometry]) -> None:
        """Each tensor-parallel rank's stages together must hold all our layers."""
        held: dict[int, set[str]] = defaultdict(set)
        for cache in caches:
            held[cache.tp_rank].update(name for group in cache.groups for name in group.layer_names)
        ours = [name for group in self._geometry.groups for name in group.layer_names]
        for names in held.values():
            missing = [name for name in ours if name not in names]
            if missing:
                raise GeometryMismatchError(
                    f"layer name: ours {missing[0]}, theirs none of {len(names)} in all stages; "
                    "start both engines with the same model"
                )


def _check_rank(address: LeaseAddress, target: Target, cache: KVGeometry) -> None:
    """The address comes with a user's request; a peer of another rank would give us a part of the heads."""
    stage, rank = divmod(target.rank, address.tp_size)
    said = (address.tp_size, rank, address.pp_size, stage)
    is_ = (cache.tp_size, cache.tp_rank, cache.pp_size, cache.pp_rank)
    for field, ours, theirs in zip(("tp_size", "tp_rank", "pp_size", "pp_rank"), said, is_, strict=True):
        if ours != theirs:
            raise GeometryMismatchError(
                f"{field}: the request says {ours} of {target.endpoint}, which says {theirs}; "
                "pass kv_transfer_params on as they are"
            )
