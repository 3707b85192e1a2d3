package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	maxPeerConns  = 256              // connections that other engines may hold here
	idleTimeout   = 10 * time.Minute // of a connection without a request
	answerTimeout = 30 * time.Second // for one frame of an answer to get through
)

// sideChannel is an engine's end of all transfers: a server for its own blocks and a reader of others'.
type sideChannel struct {
	e           *Engine
	release     release
	hash        string // compatibility hash
	incarnation uint64
	blockFloats int
	listener    net.Listener
	ctx         context.Context
	stop        context.CancelFunc
	work        sync.WaitGroup
	reader      *reader

	mu     sync.Mutex
	conns  map[net.Conn]bool // value: served here, not dialled
	served int
	deaf   bool // serves nobody any more
	closed bool
}

func newSideChannel(e *Engine, rel release) (*sideChannel, error) {
	ln, err := e.cfg.listen(e.cfg.SideChannelListen)
	if err != nil {
		return nil, fmt.Errorf("side channel: %w", err)
	}
	s := &sideChannel{
		e: e, release: rel, hash: compatibilityHash(e, rel), incarnation: rand.Uint64(),
		blockFloats: len(e.compute.Block(0)), listener: ln, conns: make(map[net.Conn]bool),
	}
	s.ctx, s.stop = context.WithCancel(e.ctx)
	s.reader = newReader(s)
	return s, nil
}

// compatibilityHash is what P and D must agree on before one reads the other: the exact release, the
// connector's version, the model and the shape of its KV. Block size is checked afterwards.
func compatibilityHash(e *Engine, rel release) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s|%d|%s|float32|%d|%d|%d|%d|pull", e.cfg.Version, connectorVersions[rel], e.shape.Name,
		e.shape.Layers, e.shape.KVHeads, e.shape.HeadDim, e.shape.VocabSize)
	return hex.EncodeToString(h.Sum(nil))
}

func (s *sideChannel) addr() string { return s.listener.Addr().String() }

// port is what handles say; an in-memory listener may have none.
func (s *sideChannel) port() int {
	if _, p, err := net.SplitHostPort(s.addr()); err == nil {
		if n, err := strconv.Atoi(p); err == nil {
			return n
		}
	}
	return 0
}

func (s *sideChannel) serve() { s.work.Go(s.accept) }

// close breaks all connections and waits for whatever used them.
func (s *sideChannel) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.stop()
	_ = s.listener.Close()
	s.work.Wait()
}

// closeServer breaks the end that others read from; this engine's own READs go on.
func (s *sideChannel) closeServer() {
	_ = s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
	for c, served := range s.conns {
		if served {
			_ = c.Close()
		}
	}
}

// adopt registers a connection to be closed with the channel; false if that has happened, or if others
// hold too many.
func (s *sideChannel) adopt(c net.Conn, served bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || served && (s.deaf || s.served >= maxPeerConns) {
		_ = c.Close()
		return false
	}
	s.conns[c] = served
	if served {
		s.served++
	}
	return true
}

func (s *sideChannel) drop(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c] {
		s.served--
	}
	delete(s.conns, c)
}

// start runs f unless the channel is closing.
func (s *sideChannel) start(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(f)
	}
}

func (s *sideChannel) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			s.pause(50 * time.Millisecond) // out of descriptors, most likely
			continue
		}
		if s.adopt(c, true) {
			s.start(func() {
				defer s.drop(c)
				s.answer(c)
			})
		}
	}
}

// pause waits for d; false if the channel was closed meanwhile.
func (s *sideChannel) pause(d time.Duration) bool {
	if d <= 0 {
		return s.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// answer serves one connection until it breaks or says something wrong.
func (s *sideChannel) answer(c net.Conn) {
	var buf, out []byte
	greeted := false
	for {
		_ = c.SetReadDeadline(time.Now().Add(idleTimeout))
		kind, body, err := readFrame(c, &buf)
		if err != nil {
			return
		}
		f := s.e.faults()
		if f.SilentSide {
			continue
		}
		_ = c.SetWriteDeadline(time.Now().Add(answerTimeout))
		switch kind {
		case frameGetMeta:
			m, bad := decodeGetMeta(body)
			if bad != nil || len(m.ranks) != s.ranks() {
				s.e.cfg.Logf("ERROR side channel: handshake frame with %d ranks, want %d", len(m.ranks), s.ranks())
				return
			}
			for _, r := range m.ranks {
				if r != 0 {
					s.e.cfg.Logf("ERROR side channel: unknown rank %v", m.ranks)
					return
				}
			}
			if !greeted && !s.pause(f.HandshakeDelay) {
				return
			}
			greeted = true
			err = writeFrame(c, frameMeta, s.meta().encode())
		case frameRead:
			m, bad := decodeRead(body)
			if bad != nil {
				return
			}
			out, err = s.answerRead(c, m, out)
		case frameNotify:
			m, bad := decodeNotify(body)
			if bad != nil {
				return
			}
			s.e.notified(m.text)
			err = writeFrame(c, frameAck, nil)
		default:
			return
		}
		if err != nil {
			return
		}
	}
}

// ranks is the length of the handshake tuple.
func (s *sideChannel) ranks() int {
	if s.release.has(sinceExpiry) {
		return 2
	}
	return 1
}

func (s *sideChannel) meta() peerMeta {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return peerMeta{
		engineID: e.id, hash: s.hash, incarnation: s.incarnation, generation: e.core.generation,
		blockSize: uint32(e.cfg.BlockSize), blocks: uint32(e.cfg.Blocks), blockFloats: uint32(s.blockFloats),
		clock: e.now().Seconds(),
	}
}

// answerRead streams blocks as they are now, pinned or not. buf is reused between calls.
func (s *sideChannel) answerRead(c net.Conn, m readRequest, buf []byte) ([]byte, error) {
	fail := ""
	if here := s.meta(); m.incarnation != here.incarnation || m.generation != here.generation {
		fail = "remote registration is stale"
	}
	for _, id := range m.blocks {
		if int(id) >= s.e.cfg.Blocks {
			fail = fmt.Sprintf("block %d is out of range", id)
		}
	}
	if fail != "" {
		return buf, writeFrame(c, frameReadEnd, readEnd{fail}.encode())
	}
	for i, id := range m.blocks {
		for off := 0; off < s.blockFloats; off += dataFloats {
			buf = openFrame(buf, frameData)
			s.e.locks[id].RLock()
			block := s.e.compute.Block(int(id))
			buf = appendData(buf, dataHeader{uint32(i), uint32(off)}, block[off:min(off+dataFloats, len(block))])
			s.e.locks[id].RUnlock()
			_ = c.SetWriteDeadline(time.Now().Add(answerTimeout))
			buf = closeFrame(buf)
			if _, err := c.Write(buf); err != nil {
				return buf, err
			}
		}
		if err := writeFrame(c, frameContent, s.e.content(id).encode()); err != nil {
			return buf, err
		}
	}
	return buf, writeFrame(c, frameReadEnd, readEnd{}.encode())
}

// fill writes a data frame's floats into a local block.
func (s *sideChannel) fill(id, offset int, floats []byte) error {
	s.e.locks[id].Lock()
	defer s.e.locks[id].Unlock()
	block := s.e.compute.Block(id)
	if offset+len(floats)/4 > len(block) {
		return errFrame
	}
	for i := range len(floats) / 4 {
		block[offset+i] = float32frombytes(floats[4*i:])
	}
	return nil
}

// content describes a block to a reader.
func (e *Engine) content(id uint32) blockContent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.contents([]uint32{id})[0]
}

// notified passes a side-channel message to the machine.
func (e *Engine) notified(text string) {
	e.locked(func() {
		if e.closed == nil {
			e.core.notified(e.now(), text)
		}
	})
	e.Wake()
}

// report passes the end of a READ to the machine.
func (e *Engine) report(r readReport) {
	e.locked(func() {
		if e.closed == nil {
			e.core.readDone(e.now(), r)
		}
	})
	e.Wake()
}

// carryOut starts what the machine wants done on the side channel.
func (e *Engine) carryOut(effects []effect) {
	for _, f := range effects {
		switch {
		case f.read != nil:
			e.side.start(func() { e.side.reader.read(f.read) })
		case f.notify != nil:
			e.side.start(func() { e.side.reader.release(f.notify) })
		case f.beat != nil:
			e.side.start(func() { e.side.reader.beat(f.beat) })
		}
	}
}

// CloseSideChannel breaks the side channel for good while the engine goes on: a fault to inject.
func (e *Engine) CloseSideChannel() {
	if e.side != nil {
		e.side.closeServer()
	}
}

func float32frombytes(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
