#!/usr/bin/env bash
# Builds the fuzz targets (clang, ASan + UBSan) and runs each for SECONDS (default 6) from the seeds, the committed
# corpus and whatever earlier runs found. usage: native/fuzz/run.sh [--minimize] [SECONDS]
# A finding ends it with a non-zero status and leaves the input in build/fuzz/<target>/crash-*.
# --minimize: afterwards, keep in corpus/ the fewest short inputs that reach what all of them reach.
set -euo pipefail

minimize=0
if [ "${1:-}" = --minimize ]; then minimize=1; shift; fi
seconds=${1:-6}
native=$(cd "$(dirname "$0")/.." && pwd)
work=$(dirname "$native")/build/fuzz
built=$(dirname "$native")/build/native-fuzz

cmake --preset fuzz -S "$native" > /dev/null
cmake --build "$built" -j 2
mkdir -p "$work/seeds"
"$built/fuzz/make_corpus" "$work/seeds"

for source in "$native"/fuzz/*_fuzz.cc; do
  target=$(basename "$source" .cc)
  committed="$native/fuzz/corpus/$target"
  mkdir -p "$work/$target/corpus" "$committed"
  echo "fuzz: $target for $seconds s"
  "$built/fuzz/$target" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=65536 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$work/$target/" "$work/$target/corpus" "$work/seeds/$target" "$committed"
  if [ "$minimize" = 1 ]; then
    rm -rf "$work/$target/merged"
    mkdir -p "$work/$target/merged"
    "$built/fuzz/$target" -merge=1 -max_len=512 -verbosity=0 "$work/$target/merged" "$work/seeds/$target" \
      "$committed" "$work/$target/corpus"
    rm -rf "$committed"
    mv "$work/$target/merged" "$committed"
  fi
done
