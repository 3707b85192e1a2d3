package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func frame(t testing.TB, kind byte, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := writeFrame(&b, kind, body); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sampleFrames is one frame of each type.
func sampleFrames(t testing.TB) map[string][]byte {
	meta := peerMeta{engineID: "e", hash: "h", incarnation: 1, generation: 2, blockSize: 16, blocks: 9, blockFloats: 64, clock: 1.5}
	return map[string][]byte{
		"get meta": frame(t, frameGetMeta, getMeta{[]uint32{0, 0}}.encode()),
		"meta":     frame(t, frameMeta, meta.encode()),
		"read":     frame(t, frameRead, readRequest{incarnation: 1, generation: 1, blocks: []uint32{3, 4}}.encode()),
		"data":     frame(t, frameData, appendData(nil, dataHeader{1, 2}, []float32{1, -2})),
		"read end": frame(t, frameReadEnd, readEnd{"broken"}.encode()),
		"notify":   frame(t, frameNotify, notifyText{"cmpl-1:1"}.encode()),
		"content":  frame(t, frameContent, blockContent{parent: blockHash{7}, tokens: []int32{5, 6}, bad: true}.encode()),
		"ack":      frame(t, frameAck, nil),
	}
}

// decodeAny takes any frame apart and puts it together again.
func decodeAny(kind byte, body []byte) ([]byte, error) {
	switch kind {
	case frameGetMeta:
		m, err := decodeGetMeta(body)
		return m.encode(), err
	case frameMeta:
		m, err := decodeMeta(body)
		return m.encode(), err
	case frameRead:
		m, err := decodeRead(body)
		return m.encode(), err
	case frameData:
		h, floats, err := decodeData(body)
		values := make([]float32, len(floats)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(floats[4*i:]))
		}
		return appendData(nil, h, values), err
	case frameContent:
		m, err := decodeContent(body)
		return m.encode(), err
	case frameReadEnd:
		m, err := decodeReadEnd(body)
		return m.encode(), err
	case frameNotify:
		m, err := decodeNotify(body)
		return m.encode(), err
	}
	return body, nil
}

func TestFrames(t *testing.T) {
	t.Parallel()
	for name, b := range sampleFrames(t) {
		var buf []byte
		kind, body, err := readFrame(bytes.NewReader(b), &buf)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again, err := decodeAny(kind, body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(again, body) {
			t.Errorf("%s: %x decodes and encodes as %x", name, body, again)
		}
		for i := range b { // any flipped byte is noticed
			bad := append([]byte(nil), b...)
			bad[i] ^= 0x40
			if _, _, err := readFrame(bytes.NewReader(bad), &buf); err == nil {
				t.Errorf("%s: byte %d flipped, accepted", name, i)
			}
		}
		for i := range b { // any cut is noticed
			if _, _, err := readFrame(bytes.NewReader(b[:i]), &buf); err == nil || i > 0 && errors.Is(err, io.EOF) && i > 4 && !errors.Is(err, errFrame) {
				t.Errorf("%s: cut to %d bytes: %v", name, i, err)
			}
		}
	}
	if err := writeFrame(io.Discard, frameData, make([]byte, maxFrame)); !errors.Is(err, errFrame) {
		t.Errorf("oversized frame: %v", err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, b := range sampleFrames(f) {
		f.Add(b)
		f.Add(append(append([]byte(nil), b...), b...))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var buf []byte
		for {
			kind, body, err := readFrame(r, &buf)
			if err != nil {
				break
			}
			if again, err := decodeAny(kind, body); err == nil && !bytes.Equal(again, body) {
				t.Fatalf("type %d: %x decodes and encodes as %x", kind, body, again)
			}
		}
		if len(buf) > maxFrame+4 {
			t.Fatalf("buffer of %d bytes", len(buf))
		}
	})
}

// FuzzPayload skips the checksum that keeps the fuzzer out.
func FuzzPayload(f *testing.F) {
	for _, b := range sampleFrames(f) {
		f.Add(b[4], b[5:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte) {
		if again, err := decodeAny(kind, body); err == nil && !bytes.Equal(again, body) {
			t.Fatalf("type %d: %x decodes and encodes as %x", kind, body, again)
		}
	})
}

func FuzzParams(f *testing.F) {
	f.Add([]byte(nullForm))
	f.Add([]byte(`{"do_remote_decode":"yes","remote_block_ids":[[1,2],[3]],"remote_num_tokens":300.0,"remote_blocks_expiry_time":1e400}`))
	f.Add([]byte(`{"remote_block_ids":[[1.5]],"remote_num_tokens":"x","remote_port":"5600","tp_size":1e99}`))
	f.Add([]byte(`{"remote_num_tokens":99999999999999999999999,"remote_prefill_cached_tokens":-1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parseParams(raw)
		if err != nil || p == nil {
			return
		}
		l := newLone(t, loneConfig())
		l.cfg.kv = roleP()
		l.addRequest(Request{ID: "a", Prompt: ids(1, 40), MaxTokens: 1, Params: raw, Logprobs: -1, PromptLogprobs: -1})
		for range 5 {
			l.step()
			for _, e := range l.takeEffects() {
				if e.read != nil {
					l.readDone(l.now, readReport{rid: e.read.rid, err: &readError{kind: "handshake_failed", err: errors.New("x")}})
				}
			}
		}
		if err := l.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestForeignFrames: whatever a connection says, only that connection ends.
func TestForeignFrames(t *testing.T) {
	t.Parallel()
	unchecked := func(n uint32, payload ...byte) []byte {
		b := binary.LittleEndian.AppendUint32(nil, n)
		b = append(b, payload...)
		return binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	}
	for name, b := range map[string][]byte{
		"garbage":            []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"huge length":        unchecked(1 << 31),
		"empty":              unchecked(0),
		"unknown type":       frame(t, 99, []byte("x")),
		"tuple of another":   frame(t, frameGetMeta, getMeta{[]uint32{0}}.encode()),
		"unknown rank":       frame(t, frameGetMeta, getMeta{[]uint32{0, 1}}.encode()),
		"list longer":        frame(t, frameRead, append(readRequest{}.encode()[:16], 0xff, 0xff, 0xff, 0x7f)),
		"answer, not a call": frame(t, frameMeta, peerMeta{}.encode()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				c, err := x.net.dial(t.Context(), x.d.SideChannel())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = c.Write(b)
				if n, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, io.ErrClosedPipe) || n > 0 {
					t.Errorf("%d bytes came back, %v: want the connection closed", n, err)
				}
				history, params := x.conversation(1)
				equal(t, "another reader", x.call(next(history), string(params)), outcome{FinishLength, right, 512, 127, 0})
			})
		})
	}
}

// TestForeignOwner: whatever an owner answers, the reader fails that request only.
func TestForeignOwner(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(c net.Conn){
		"silence": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"hang-up": func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) },
		"garbage": func(c net.Conn) { _, _ = c.Read(make([]byte, 64)); _, _ = c.Write(bytes.Repeat([]byte("x"), 100)) },
		"wrong type": func(c net.Conn) {
			var buf []byte
			_, _, _ = readFrame(c, &buf)
			_ = writeFrame(c, frameAck, nil)
		},
		"another hash": func(c net.Conn) {
			var buf []byte
			for range 3 {
				_, _, _ = readFrame(c, &buf)
				_ = writeFrame(c, frameMeta, peerMeta{engineID: "e", hash: "other"}.encode())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPair(t, func(t *testing.T, x *pair) {
				ln, err := x.net.listen("127.0.0.1:9000")
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						c, err := ln.Accept()
						if err != nil {
							return
						}
						answer(c)
						c.Close()
					}
				}()
				history, b := x.conversation(1)
				params := set(t, b, "remote_port", 9000)
				equal(t, "outcome", x.call(next(history), params), outcome{FinishError, false, 512, 127, 1})
				equal(t, "failed transfers", x.p.Snapshot().FailedTransfers, 1)
				equal(t, "the real owner", x.call(next(history), string(b)), outcome{FinishLength, right, 512, 127, 0})
				ln.Close()
				<-done
			})
		})
	}
}

// TestMismatch: engines of different releases, models or block sizes do not read each other.
func TestMismatch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(cfg *Config)
		phrase string
	}{
		"version":    {func(cfg *Config) { cfg.Version = "0.32.0" }, "NIXL compatibility hash mismatch"},
		"tuple":      {func(cfg *Config) { cfg.Version = "0.25.1" }, "NIXL transfer failure: handshake_failed"},
		"block size": {func(cfg *Config) { cfg.BlockSize, cfg.Blocks = 64, 400 }, "NIXL transfer failure: handshake_setup_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cd := measured()
				c.change(&cd)
				x := newPair(t, measured(), cd)
				prompt := ids(1, 600)
				a := x.p.run(prompt, 1, nullForm)
				equal(t, "finish", x.d.run(prompt, 4, string(a.Params)).Finish, FinishError)
				equal(t, "D's log", x.d.log.count(c.phrase) > 0, true)
				equal(t, "pinned on P", pinned(x.p), [2]int{1, 5})
			})
		})
	}
}

// TestLink: a READ takes latency plus bytes by bandwidth, and READs share the wire.
func TestLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cd := measured()
		cd.Faults.LinkLatency = time.Second
		cd.Faults.LinkBytesPerSecond = 5 * 128 * fakeFloats * 4 / 2. // a READ of five blocks takes 2 s
		x := newPair(t, measured(), cd)
		var chans []<-chan Output
		start := time.Now()
		for seed := range 2 {
			prompt := ids(seed, 600)
			a := x.p.run(prompt, 1, nullForm)
			ch, err := x.d.Submit(x.d.request(prompt, 1, string(a.Params)))
			if err != nil {
				t.Fatal(err)
			}
			chans = append(chans, ch)
		}
		for _, ch := range chans {
			collect(ch)
		}
		equal(t, "time", time.Since(start), 5*time.Second)
		s := x.d.Snapshot()
		equal(t, "READs, mean seconds", []float64{float64(s.XferTime.Count), math.Round(s.XferTime.Sum)}, []float64{2, 10})
	})
}

func TestDescriptors(t *testing.T) {
	t.Parallel()
	f := func(local, remote []int, runs int) {
		t.Helper()
		equal(t, "descriptors", descriptors(local, remote, 30), 30*runs)
	}
	f([]int{1, 2, 3, 4, 5}, []int{7, 8, 9, 10, 11}, 1)
	f([]int{1, 2, 3, 4}, []int{9, 7, 5, 3}, 4)
	f([]int{1, 2, 9}, []int{4, 5, 6}, 2)
	f(nil, nil, 0)
}
