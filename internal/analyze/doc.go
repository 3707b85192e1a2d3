// Package analyze reads traffic logs and says how much of the prompts comes back from turn to turn, how late,
// and what keeping it would cost: enough to decide whether reuse across turns is worth having.
//
//	files ─► lines ─► rows ──(conversation known)────────────────────► sort ─► conversations ─► Report
//	         (2+ parsers)  └─(only content known)─► sort by time ─► link ─┘
//
// A row is one request: who, when, how long, how many tokens, and, if the log has them, its content (text, token
// ids or block hashes). Formats are recognised line by line, by their members; docs/analyze.md lists them. Rows
// are sorted on disk when they do not fit into Options.Memory, so the size of the input is bounded by the disk,
// and memory by that limit plus the longest conversation's distinct texts (capped too, and reported when the cap
// was reached). Sums and shares are exact. Quantiles are exact up to four million values, within 0.1 % above;
// peaks over time are exact to the width of a time bucket, which the report states.
//
// Rows without a conversation id are linked by content: a request continues an earlier one if it begins with all
// of it. Rows with neither are counted for load only, and the report says that repetition cannot be computed.
//
// Nothing a client wrote reaches a Report: conversation and tenant names are salted hashes, texts are described by
// position, length and kind. Files that hold spilled rows are encrypted with a key that is never stored and have
// no name in the file system, so that no crash leaves them behind.
//
// Run is safe to call concurrently; each call uses GOMAXPROCS goroutines and waits for them. The package does not
// tokenise: where a log has text but no token counts, sizes are characters, and the report says so.
package analyze
