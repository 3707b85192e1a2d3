package engine

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	maxReads      = 32                     // READs in progress
	maxIdleConns  = 4                      // per peer
	redialPause   = 100 * time.Millisecond // between dials while a handshake waits for its peer
	maxBackoff    = 60 * time.Second       // of a peer found broken
	maxPeersKnown = 1024
)

// reader is the side of transfers that asks. It knows its peers by engine id and address.
type reader struct {
	side  *sideChannel
	slots chan struct{} // one per READ in progress
	link  link

	mu    sync.Mutex
	peers map[peerKey]*peer
	met   map[string]string // address → engine id first met there, for the StalePeers fault
}

type peerKey struct{ engineID, addr string }

// peer is what is known of another engine. Its fields are guarded by turn, a lock that may be waited
// for while time passes.
type peer struct {
	turn    chan struct{}
	known   bool // a handshake succeeded and is still believed
	meta    peerMeta
	offset  time.Duration // its clock minus ours
	since   time.Duration // own clock at the handshake
	broken  bool          // READs failed: believed again after blocked (0.32 and later)
	blocked time.Duration // own clock
	backoff time.Duration

	mu       sync.Mutex
	idle     []net.Conn
	attempts int   // handshakes tried
	failure  error // of the last one
}

func newReader(s *sideChannel) *reader {
	return &reader{side: s, slots: make(chan struct{}, maxReads), peers: make(map[peerKey]*peer), met: make(map[string]string)}
}

func (r *reader) logf(format string, args ...any) { r.side.e.cfg.Logf(format, args...) }

func (r *reader) peer(p *transferParams) (*peer, string) {
	addr := net.JoinHostPort(p.host, p.port)
	k := peerKey{p.engineID, addr}
	r.mu.Lock()
	q := r.peers[k]
	var forgotten *peer
	if q == nil {
		if len(r.peers) >= maxPeersKnown {
			for old, o := range r.peers { // any will do: it costs a handshake
				delete(r.peers, old)
				forgotten = o
				break
			}
		}
		q = &peer{turn: make(chan struct{}, 1)}
		r.peers[k] = q
	}
	r.mu.Unlock()
	if forgotten != nil {
		forgotten.drain(r.side)
	}
	return q, addr
}

// read does one job and reports its end.
func (r *reader) read(j *readJob) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-r.side.ctx.Done():
		return
	}
	r.side.e.report(r.transfer(j))
}

func (r *reader) transfer(j *readJob) readReport {
	e := r.side.e
	rep := readReport{rid: j.rid}
	q, addr := r.peer(j.params)
	meta, offset, err := r.shakeHands(q, addr, j.params)
	if err != nil {
		rep.err = err
		return rep
	}
	f := e.faults()
	now := e.clock()
	if e.core.flag() && j.late(now, offset) {
		rep.declined = true
		return rep
	}
	if len(j.local) == 0 {
		if err := r.tell(q, addr, j.params.requestID+":1"); err != nil {
			rep.notifyErr = err
		}
		return rep
	}
	remote, err := j.pairBlocks()
	if err != nil {
		rep.err = err
		return rep
	}
	for _, id := range remote {
		if id < 0 || id >= int(meta.blocks) {
			rep.err = &readError{kind: "transfer_setup_failed", err: fmt.Errorf("block %d of %d", id, meta.blocks)}
			return rep
		}
	}
	if e.takeReadFault() {
		rep.err = &readError{kind: "transfer_failed", err: errors.New("injected")}
		return rep
	}
	e.readStarted(j.rid)
	if !r.side.pause(f.LinkLatency) {
		rep.err = &readError{kind: "transfer_failed", err: net.ErrClosed}
		return rep
	}
	c, got, err := r.fetch(q, addr, meta, j.local, remote)
	rep.xfer, rep.posted, rep.contents = e.clock()-now, got.posted, got.contents
	if err != nil {
		rep.err = &readError{kind: "transfer_setup_failed", err: err}
		return rep
	}
	rep.bytes = int64(len(j.local)) * int64(r.side.blockFloats) * 4
	rep.descriptors = descriptors(j.local, remote, e.shape.Layers)
	if err := exchangeNotify(c, j.params.requestID+":1"); err != nil {
		r.side.drop(c)
		rep.notifyErr = err
		return rep
	}
	q.keep(r.side, c)
	return rep
}

// release tells an owner that a request will not read its blocks.
func (r *reader) release(j *readJob) {
	q, addr := r.peer(j.params)
	if _, _, err := r.shakeHands(q, addr, j.params); err != nil {
		r.logf("ERROR NIXL transfer failure: %v | Context: {'request_id': '%s'}", err, j.rid)
		return
	}
	if err := r.tell(q, addr, j.params.requestID+":1"); err != nil {
		r.logf("ERROR NIXL transfer failure: notification_failed: %v | Context: {'request_id': '%s'}", err, j.rid)
	}
}

// beat renews leases at an owner whose handshake is done; before, there is nobody to tell.
func (r *reader) beat(h *heartbeat) {
	q, addr := r.peer(h.params)
	if !q.lock(r.side) {
		return
	}
	known := q.known
	q.unlock()
	if known {
		if err := r.tell(q, addr, h.message()); err != nil {
			r.logf("WARNING heartbeat to %s failed: %v", addr, err)
		}
	}
}

func (q *peer) lock(s *sideChannel) bool {
	select {
	case q.turn <- struct{}{}:
		return true
	case <-s.ctx.Done():
		return false
	}
}

func (q *peer) unlock() { <-q.turn }

// shakeHands makes sure that a peer is known: once per engine id and address, and again when its cache
// was registered anew or it was found broken.
func (r *reader) shakeHands(q *peer, addr string, p *transferParams) (peerMeta, time.Duration, error) {
	e, rel := r.side.e, r.side.release
	before, _ := q.lastAttempt()
	if !q.lock(r.side) {
		return peerMeta{}, 0, &readError{kind: "handshake_failed", err: net.ErrClosed}
	}
	defer q.unlock()
	if attempt, err := q.lastAttempt(); attempt != before && err != nil {
		return peerMeta{}, 0, err // whoever waited for a handshake shares its end
	}
	now := e.clock()
	switch {
	case !q.known:
	case q.broken && rel.has(sinceCleanup):
		if now < q.blocked {
			return peerMeta{}, 0, &readError{kind: "handshake_failed", err: phrasef("Local NIXL metadata for remote engine %s was invalidated, backing off", p.engineID)}
		}
		r.logf("INFO Released NIXL state for replaced or locally invalid remote engine %s", p.engineID)
		q.known = false
	case q.broken && now-q.since >= e.cfg.KV.EngineTTL:
		q.known, q.broken = false, false
	case p.generation > q.meta.generation && rel.has(sinceGeneration):
		q.known = false
	}
	if q.known {
		return q.meta, q.offset, nil
	}
	q.drain(r.side)
	c, meta, offset, err := r.greet(addr, p)
	if err == nil {
		if err = r.judge(meta, addr, p); err != nil {
			r.side.drop(c)
		}
	}
	q.mu.Lock()
	q.attempts, q.failure = q.attempts+1, err
	q.mu.Unlock()
	if err != nil {
		return peerMeta{}, 0, err
	}
	q.meta, q.offset, q.since, q.known, q.broken = meta, offset, now, true, false
	q.keep(r.side, c)
	return meta, offset, nil
}

func (q *peer) lastAttempt() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attempts, q.failure
}

// greet dials until somebody listens or the time is up, as ZMQ does, and asks for the metadata. The
// clock offset comes from the fastest probe.
func (r *reader) greet(addr string, p *transferParams) (net.Conn, peerMeta, time.Duration, error) {
	e := r.side.e
	fail := func(err error) (net.Conn, peerMeta, time.Duration, error) {
		return nil, peerMeta{}, 0, &readError{kind: "handshake_failed", err: err}
	}
	if p.host == "" || p.port == "" {
		return fail(errors.New("no address"))
	}
	deadline := time.Now().Add(e.cfg.HandshakeTimeout)
	var c net.Conn
	for {
		var err error
		if c, err = r.dial(addr); err == nil {
			break
		}
		if !time.Now().Before(deadline) || !r.side.pause(redialPause) {
			return fail(fmt.Errorf("no answer within %v: %w", e.cfg.HandshakeTimeout, err))
		}
	}
	_ = c.SetDeadline(deadline)
	var best peerMeta
	var offset, fastest time.Duration
	for probe := range 3 {
		t0 := e.clock()
		meta, err := exchangeMeta(c, r.side.ranks())
		if err != nil {
			r.side.drop(c)
			return fail(err)
		}
		t1 := e.clock()
		if probe == 0 || t1-t0 < fastest {
			fastest = t1 - t0
			offset = time.Duration(meta.clock*float64(time.Second)) - (t0+t1)/2
		}
		best = meta
	}
	_ = c.SetDeadline(time.Time{})
	return c, best, offset, nil
}

// judge refuses a peer that must not be read.
func (r *reader) judge(m peerMeta, addr string, p *transferParams) error {
	e := r.side.e
	if m.hash != r.side.hash {
		r.logf("ERROR NIXL compatibility hash mismatch. Local: %s, Remote: %s. Prefill and decode instances have incompatible configurations", r.side.hash, m.hash)
		return &readError{kind: "handshake_failed", err: phrasef("NIXL compatibility hash mismatch")}
	}
	r.logf("INFO NIXL compatibility check passed (hash: %s)", m.hash)
	if m.engineID != p.engineID {
		return &readError{kind: "handshake_failed", err: phrasef("Remote NIXL agent engine ID mismatch. Expected %s, received %s", p.engineID, m.engineID)}
	}
	if int(m.blockSize) != e.cfg.BlockSize || int(m.blockFloats) != r.side.blockFloats {
		return &readError{kind: "handshake_setup_failed", err: fmt.Errorf("remote block size %d, local %d", m.blockSize, e.cfg.BlockSize)}
	}
	stale := e.faults().StalePeers
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, ok := r.met[addr]; ok && first != p.engineID && stale {
		return &readError{kind: "handshake_failed", err: errors.New("stale endpoint of an earlier engine at this address")}
	}
	if _, ok := r.met[addr]; !ok && len(r.met) < maxPeersKnown {
		r.met[addr] = p.engineID
	}
	return nil
}

func (r *reader) dial(addr string) (net.Conn, error) {
	c, err := r.side.e.cfg.dial(r.side.ctx, addr)
	if err != nil {
		return nil, err
	}
	if !r.side.adopt(c, false) {
		return nil, net.ErrClosed
	}
	return c, nil
}

// fetch reads remote blocks into local ones and returns the connection for the notification. A peer that
// cannot be reached, or that is another incarnation, is marked broken.
func (r *reader) fetch(q *peer, addr string, meta peerMeta, local, remote []int) (net.Conn, fetched, error) {
	c, reused, err := r.connect(q, addr)
	var got fetched
	if err == nil {
		got, err = r.fetchOn(c, meta, local, remote)
		if err != nil && reused && r.side.ctx.Err() == nil { // the peer may have closed an idle connection
			q.drain(r.side)
			if c, err = r.dial(addr); err == nil {
				got, err = r.fetchOn(c, meta, local, remote)
			}
		}
	}
	if err != nil {
		r.markBroken(q)
		return nil, fetched{}, err
	}
	_ = c.SetDeadline(time.Time{})
	if q.lock(r.side) {
		q.backoff = 0
		q.unlock()
	}
	return c, got, nil
}

// fetched is what a READ brought besides the numbers.
type fetched struct {
	posted   time.Duration // until all of it was asked for
	contents []blockContent
}

// fetchOn reads blocks over one connection, which it drops on failure.
func (r *reader) fetchOn(c net.Conn, meta peerMeta, local, remote []int) (got fetched, err error) {
	defer func() {
		if err != nil {
			r.side.drop(c)
		}
	}()
	var buf []byte
	for len(local) > 0 {
		start := time.Now()
		n := min(len(local), maxReadBlocks)
		m := readRequest{incarnation: meta.incarnation, generation: meta.generation, blocks: make([]uint32, n)}
		for i := range n {
			m.blocks[i] = uint32(remote[i])
		}
		_ = c.SetDeadline(time.Now().Add(answerTimeout))
		if err := writeFrame(c, frameRead, m.encode()); err != nil {
			return got, err
		}
		got.posted += time.Since(start)
		contents, err := r.receive(c, &buf, local[:n], int(meta.blockFloats))
		if err != nil {
			return got, err
		}
		got.contents = append(got.contents, contents...)
		local, remote = local[n:], remote[n:]
	}
	return got, nil
}

// receive takes the answer to one read request. Frames come in order: a block's data, then its content.
func (r *reader) receive(c net.Conn, buf *[]byte, local []int, blockFloats int) ([]blockContent, error) {
	contents := make([]blockContent, 0, len(local))
	offset := 0
	for {
		_ = c.SetReadDeadline(time.Now().Add(answerTimeout))
		kind, body, err := readFrame(c, buf)
		if err != nil {
			return nil, err
		}
		index := len(contents)
		switch kind {
		case frameData:
			h, floats, err := decodeData(body)
			if err != nil {
				return nil, err
			}
			if index >= len(local) || int(h.index) != index || int(h.offset) != offset || len(floats) == 0 {
				return nil, fmt.Errorf("%w: data out of order", errFrame)
			}
			if err := r.side.fill(local[index], offset, floats); err != nil {
				return nil, err
			}
			offset += len(floats) / 4
			if !r.side.pause(r.link.reserve(len(floats), r.side.e.faults().LinkBytesPerSecond)) {
				return nil, net.ErrClosed
			}
		case frameContent:
			m, err := decodeContent(body)
			if err != nil {
				return nil, err
			}
			if index >= len(local) || offset != blockFloats {
				return nil, fmt.Errorf("%w: content out of order", errFrame)
			}
			contents, offset = append(contents, m), 0
		case frameReadEnd:
			m, err := decodeReadEnd(body)
			switch {
			case err != nil:
				return nil, err
			case m.text != "":
				return nil, errors.New(m.text)
			case index != len(local):
				return nil, fmt.Errorf("%w: %d of %d blocks came", errFrame, index, len(local))
			}
			return contents, nil
		default:
			return nil, fmt.Errorf("%w: unexpected type %d", errFrame, kind)
		}
	}
}

// tell sends one message and waits for its acknowledgement.
func (r *reader) tell(q *peer, addr, text string) error {
	c, reused, err := r.connect(q, addr)
	if err != nil {
		return err
	}
	if err = exchangeNotify(c, text); err != nil {
		r.side.drop(c)
		if !reused {
			return err
		}
		if c, err = r.dial(addr); err != nil {
			return err
		}
		if err = exchangeNotify(c, text); err != nil {
			r.side.drop(c)
			return err
		}
	}
	q.keep(r.side, c)
	return nil
}

// markBroken stops believing in a peer: at once and then for longer each time.
func (r *reader) markBroken(q *peer) {
	if !q.lock(r.side) {
		return
	}
	defer q.unlock()
	q.drain(r.side)
	if !q.known || q.broken {
		return
	}
	now := r.side.e.clock()
	q.broken, q.blocked = true, now+q.backoff
	q.backoff = min(maxBackoff, max(time.Second, 2*q.backoff))
	if r.side.release.has(sinceCleanup) {
		r.logf("WARNING Local NIXL metadata for remote engine %s was invalidated", q.meta.engineID)
	}
}

// connect takes an idle connection or dials.
func (r *reader) connect(q *peer, addr string) (c net.Conn, reused bool, err error) {
	q.mu.Lock()
	if n := len(q.idle); n > 0 {
		c, q.idle = q.idle[n-1], q.idle[:n-1]
	}
	q.mu.Unlock()
	if c != nil {
		return c, true, nil
	}
	c, err = r.dial(addr)
	return c, false, err
}

func (q *peer) keep(s *sideChannel, c net.Conn) {
	q.mu.Lock()
	full := len(q.idle) >= maxIdleConns
	if !full {
		q.idle = append(q.idle, c)
	}
	q.mu.Unlock()
	if full {
		s.drop(c)
	}
}

func (q *peer) drain(s *sideChannel) {
	q.mu.Lock()
	idle := q.idle
	q.idle = nil
	q.mu.Unlock()
	for _, c := range idle {
		s.drop(c)
	}
}
