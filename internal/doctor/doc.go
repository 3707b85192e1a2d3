// Package doctor finds what makes a pair of engines look healthy while nothing is reused.
//
//	HTTP, logs, settings, host ──Gather──► Facts ──Diagnose──► results ──► Report: text, JSON, exit code
//	                                ▲
//	                    the probe: three turns of a conversation, as a router would play them
//
// Gather does all the I/O and judges nothing; what cannot be asked is a fact too. Checks are pure functions of the facts
// and do no I/O. Each has a stable name, says what it saw (evidence), how bad that is, and the exact setting or
// command that mends it. A check hides behind its cause: what follows from an error that has been named is not named
// again.
//
// The probe sends engines only what is safe, apart from one thing that cannot be avoided: whether a prefill engine reads
// handles is known only by giving it one, and an engine whose flag is off parks that request for ever. See probe.go for
// how that is kept small. It leaves nothing pinned on a sound pair, and says what it had to leave on others.
//
// Gather, Diagnose and Watch may be called from several goroutines; Facts are not changed once they are made.
//
// The package does not measure what reuse is worth (tarik bench, tarik analyze), changes no setting, and never talks to
// the engines' side channels, which a stray frame can end.
package doctor
