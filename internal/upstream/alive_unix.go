//go:build unix

package upstream

import "syscall"

// nothingToRead reports whether a socket, which does not block, is open and has nothing to read.
func nothingToRead(fd uintptr) bool {
	var b [1]byte
	_, err := syscall.Read(int(fd), b[:])
	return err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
}
