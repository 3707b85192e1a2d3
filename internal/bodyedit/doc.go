// Package bodyedit reads and edits the members of a JSON object without touching any other byte.
//
// A router must not decode and encode a body it forwards: maps lose the order of members, encoders escape
// '<' and '&' and round large integers, and each of these changes the prompt that an engine computes. So a
// body is scanned once, positions are remembered, and an edit is a list of segments over the same bytes:
//
//	body      { "model":"m" , "stream":true , "messages":[ … 1 MiB … ] }
//	P edit    ├─ body[0:k] ─┤ ├ "false" ┤ ├──────── body[j:n] ────────┤ ,"max_tokens":1 }
//	D edit    ├──────────────── body[0:m] ──────────────────────────────┤ ,"kv_transfer_params":{…} }
//
// [Scan] checks the whole text and refuses what is not one well-formed JSON object: balanced, at most
// [MaxDepth] deep, nothing behind it. It accepts exactly the objects that encoding/json calls valid within
// that depth. The check is also a security measure: engines that guess the encoding would read a body in
// UTF-16 whose members a byte scanner does not see, and such a body does not pass. Nested values are
// skipped, never decoded. Time is linear in the length, memory does not depend on the depth.
//
// Names are compared after unescaping, so "\u006bv_transfer_params" is kv_transfer_params. A name may occur
// several times: lookups return the last occurrence, which is the one engines use, and edits act on all.
//
// The caller must not change the body while a [Doc] or [Edit] of it is in use. A Doc is safe for concurrent
// reading; each Edit belongs to one goroutine until its first output method (Len, Reader, …) has returned,
// after which output methods may be called from several.
//
// The package does not decode into structs, does not check UTF-8, and does not interpret what it edits.
package bodyedit
