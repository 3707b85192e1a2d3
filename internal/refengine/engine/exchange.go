package engine

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// exchangeMeta asks for metadata on c, within c's deadline.
func exchangeMeta(c net.Conn, ranks int) (peerMeta, error) {
	if err := writeFrame(c, frameGetMeta, getMeta{make([]uint32, ranks)}.encode()); err != nil {
		return peerMeta{}, err
	}
	var buf []byte
	kind, body, err := readFrame(c, &buf)
	if err != nil {
		return peerMeta{}, err
	}
	if kind != frameMeta {
		return peerMeta{}, fmt.Errorf("%w: unexpected type %d", errFrame, kind)
	}
	return decodeMeta(body)
}

// exchangeNotify sends one message on c and waits for the owner to have taken it.
func exchangeNotify(c net.Conn, text string) error {
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	if err := writeFrame(c, frameNotify, notifyText{text}.encode()); err != nil {
		return err
	}
	var buf []byte
	kind, _, err := readFrame(c, &buf)
	if err != nil {
		return err
	}
	if kind != frameAck {
		return fmt.Errorf("%w: unexpected type %d", errFrame, kind)
	}
	return nil
}

// link is a simulated wire shared by all READs of an engine.
type link struct {
	mu   sync.Mutex
	busy time.Time // until then
}

// reserve books n bytes and returns how long to wait until they are through.
func (l *link) reserve(n int, bytesPerSecond float64) time.Duration {
	if bytesPerSecond <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.busy.Before(now) {
		l.busy = now
	}
	l.busy = l.busy.Add(time.Duration(float64(n) / bytesPerSecond * float64(time.Second)))
	return l.busy.Sub(now)
}

// takeReadFault uses up one injected READ failure.
func (e *Engine) takeReadFault() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.core.faults.FailReads <= 0 {
		return false
	}
	e.core.faults.FailReads--
	return true
}

func (e *Engine) readStarted(rid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.readStarted(rid)
}
