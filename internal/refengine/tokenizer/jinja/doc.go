// Package jinja renders chat templates as Python's Jinja2 does in the environment that Hugging Face
// sets up for them: trim_blocks and lstrip_blocks, a tojson that leaves "<" alone, raise_exception,
// strftime_now, loop controls, a sandbox without files.
//
//	source ── translate ──► simpler source ── gonja parses ──► tree ── Execute(variables) ──► text
//
// gonja runs statements and scopes. Its expressions differ from Jinja's in ways that real templates
// meet (no conditional inside an expression, no line break in a tag, list[-1] of a list of one is
// missing, null is undefined, maps lose their order), so translate parses expressions itself and
// writes every operator as a call of a function of this package. What those functions, the filters and
// the tests do is compared with Jinja2 in testdata.
//
// Known differences: tuples are lists when printed, numbers of JSON print as they were sent instead of
// as Python would write them (1.50, 1e400), "set" takes one name, and methods that change a list or
// dict are missing (as in the sandbox). A template that uses something unknown fails, with its line.
//
// A Template may be executed by several goroutines at the same time.
package jinja
