//go:build !unix

package upstream

// nothingToRead cannot tell here: a call on a connection that the engine has closed fails.
func nothingToRead(uintptr) bool { return true }
