#!/usr/bin/env bash
# Rings of packed sequences, sinks and wide heads, on two ranks that share a GPU, or as MORE says: each is judged. T tokens, N launches.
MK=${MK:-target/debug/mk}; MORE=${MORE:---gpus 0,0}; T=${T:-8192}
run() { printf '%-34s' "$1"; timeout 100 $MK run "$2" $MORE --launches ${N:-20} ${3:+--routing $3} 2>&1 | grep -E "PASS|FAIL|error|RAN" | tail -1; }
Q="bf16[1, $T, 8, 128] @ zigzag(1)"; K="bf16[1, $T, 2, 128] @ zigzag(1)"; ST="f32[1, 8, $T, 4] @ zigzag(2)"
for f in random one uniform; do
run "ring, documents $f" "fn f(q: $Q, k: $K, v: $K, cu: i32[17]) { let o = ring(k, v) -> attention(q, causal, cu_seqlens = cu); (o, o -> lse) }" $f
run "ring dq, documents $f" "fn f(q: $Q, do: $Q, stats: $ST, k: $K, v: $K, cu: i32[17]) { ring(k, v) -> attention_dq(q, do, stats, causal, cu_seqlens = cu) }" $f
run "ring dkv, documents $f" "fn f(q: $Q, do: $Q, stats: $ST, k: $K, v: $K, cu: i32[17]) { let dk = ring(q, do, stats) -> attention_dk(k, v, causal, cu_seqlens = cu); (dk, dk -> attention_dv) }" $f
done
run "ring, sinks, window" "fn f(q: $Q, k: $K, v: $K, s: f32[8]) { let o = ring(k, v) -> attention(q, causal, window = 128, sinks = s); (o, o -> lse) }"
for DE in 192:192 192:128 256:256; do D=${DE%:*}; E=${DE#*:}
G="q: bf16[1, $T, 8, $D] @ zigzag(1), do: bf16[1, $T, 8, $E] @ zigzag(1), stats: $ST, k: bf16[1, $T, 2, $D] @ zigzag(1), v: bf16[1, $T, 2, $E] @ zigzag(1)"
run "ring, heads of $DE" "fn f(q: bf16[1, $T, 8, $D] @ zigzag(1), k: bf16[1, $T, 2, $D] @ zigzag(1), v: bf16[1, $T, 2, $E] @ zigzag(1)) { ring(k, v) -> attention(q, causal) }"
run "ring dq, heads of $DE" "fn f($G) { ring(k, v) -> attention_dq(q, do, stats, causal) }"
run "ring dkv, heads of $DE" "fn f($G) { let dk = ring(q, do, stats) -> attention_dk(k, v, causal); (dk, dk -> attention_dv) }"
done
for D in 192 256; do
run "heads of $D, cap, documents" "fn f(q: f16[1, $T, 8, $D] @ shard(2), k: f16[1, $T, 2, $D] @ shard(2), v: f16[1, $T, 2, $D] @ shard(2), cu: i32[17], s: f32[8] @ shard(0)) { attention(q, k, v, causal, softcap = 50, cu_seqlens = cu, sinks = s) }" random
done
run "decode" "fn f(q: bf16[4, 1, 32, 128] @ shard(0), k: bf16[4, 32768, 8, 128] @ shard(0), v: bf16[4, 32768, 8, 128] @ shard(0), s: f32[32]) { let o = attention(q, k, v, causal, sinks = s); (o, o -> lse) }"
run "decode of 7, window" "fn f(q: bf16[2, 7, 8, 128] @ shard(0), k: bf16[2, 9999, 2, 128] @ shard(0), v: bf16[2, 9999, 2, 128] @ shard(0)) { attention(q, k, v, causal, window = 4000) }"
