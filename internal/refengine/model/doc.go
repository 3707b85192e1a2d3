// Package model computes a Llama-family decoder on the CPU, over a paged KV cache.
//
// It is the part of the reference engine that turns token ids into logits. The keys and values of a
// token live where a block table says, and nowhere else: a wrong block gives wrong logits, as it does
// on a real engine.
//
//	tokens ─► embedding ─► layer 0 ─► … ─► layer n-1 ─► norm ─► head ─► logits
//	                         │ K,V write, K,V read
//	                         ▼
//	            Pool: [blocks][layers][2][blockSize][KVHeads*HeadDim] float32
//
// # Batch invariance
//
// A token's KV and logits are bit for bit the same whatever else is in the batch, however its prompt is
// cut into chunks, whatever the block size and however many cores compute. Each output element has one
// accumulation order, which no blocking changes: a matrix product adds over the inner index from 0 up, attention
// visits positions from 0 up in tiles at fixed absolute positions. This is what makes greedy output comparable
// token for token between an engine that reuses KV and one that does not.
//
// Two kinds of kernels exist, plain Go (the specification) and AVX2 assembly (see kernels.go). They
// round differently, within a bound that the tests state; one process uses only one kind.
//
// # What the caller does
//
// Make a Model (Tiny, LoadDir, LoadGGUF) and a Pool for it; give each sequence a block table; call
// Forward with the tokens to compute. Which block belongs to whom is the caller's business.
//
// # Concurrency
//
// A Model is immutable and may serve many Pools at once. A Pool has its own workspace: one Forward at a time
// per Pool. Others may read or write blocks of the Pool that the running Forward does not touch.
// Forward computes on up to GOMAXPROCS goroutines and has ended them all when it returns.
//
// # What it does not do
//
// No sampling, no tokenisation, no scheduling, no training. No encoder, no sliding window, no mixture of
// experts: a checkpoint that needs one is refused by name.
package model
