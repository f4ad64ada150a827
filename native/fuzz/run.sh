#!/usr/bin/env bash
# Builds the fuzz targets (clang, ASan + UBSan) and runs each for SECONDS (default 10) from the seeds and whatever
# earlier runs found. usage: native/fuzz/run.sh [SECONDS]
# A finding ends it with a non-zero status and leaves the input in build/fuzz/<target>/crash-*.
set -euo pipefail

seconds=${1:-10}
native=$(cd "$(dirname "$0")/.." && pwd)
work=$(dirname "$native")/build/fuzz
built=$(dirname "$native")/build/native-fuzz

cmake --preset fuzz -S "$native" > /dev/null
cmake --build "$built" -j 2
mkdir -p "$work/seeds"
"$built/fuzz/make_corpus" "$work/seeds"

for source in "$native"/fuzz/*_fuzz.cc; do
  target=$(basename "$source" .cc)
  mkdir -p "$work/$target/corpus"
  echo "fuzz: $target for $seconds s"
  "$built/fuzz/$target" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=2048 -max_len=65536 -verbosity=0 \
    -print_final_stats=1 -artifact_prefix="$work/$target/" "$work/$target/corpus" "$work/seeds/$target"
done
