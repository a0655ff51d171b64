// SPDX-License-Identifier: Apache-2.0

package smctools_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
)

// A replayer stands for the kernel at a unix socket: it answers the requests of a program
// with the answers of a recording.
type replayer struct {
	t        testing.TB
	l        *net.UnixListener
	families map[string][][]byte // answers of the controller, by the name of the family

	wg    sync.WaitGroup
	mu    sync.Mutex
	asked []*question
	conns map[*net.UnixConn]struct{}
}

func newReplayer(t testing.TB, path string) *replayer {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	r := &replayer{t: t, l: l, families: make(map[string][][]byte), conns: make(map[*net.UnixConn]struct{})}
	r.wg.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.conns[conn] = struct{}{}
			r.mu.Unlock()
			r.wg.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for conn := range r.conns {
			conn.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// learn keeps the answers of the controller. The programs of smcr sometimes ask it when
// those of smc-tools did not.
func (r *replayer) learn(list []*recording) {
	for _, rec := range list {
		for _, q := range rec.asked {
			if name := familyOf(q.request); name != "" && len(q.answers) > 0 && headerOf(q.answers[0]).typ == typeController {
				r.families[name] = q.answers
			}
		}
	}
}

// familyOf returns the name of the family in a request to the controller, or "".
func familyOf(request []byte) string {
	if headerOf(request).typ != typeController || len(request) < 24 {
		return ""
	}
	name, _, _ := bytes.Cut(request[24:], []byte{0})
	return string(name)
}

// play sets the recording with the answers.
func (r *replayer) play(rec *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = rec.asked
}

func (r *replayer) serve(conn *net.UnixConn) {
	defer func() {
		conn.Close()
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := conn.Read(b)
		if err != nil || n < headerLen {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
				r.t.Errorf("replay: %v", err)
			}
			return
		}
		for _, d := range r.answer(b[:n]) {
			if _, err := conn.Write(d); err != nil {
				return // the program has ended
			}
		}
	}
}

// find returns the recorded answers to a request: those to the first request of the same
// command that was not used yet.
func (r *replayer) find(request []byte) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last *question
	for _, q := range r.asked {
		if !same(q.request, request) {
			continue
		}
		last = q
		if !q.used {
			break
		}
	}
	if last != nil {
		last.used = true
		return last.answers
	}
	return r.families[familyOf(request)]
}

// same reports whether two requests ask for the same family or have the same command.
func same(a, b []byte) bool {
	if headerOf(a).typ != headerOf(b).typ {
		return false
	}
	if headerOf(a).typ == typeController {
		return familyOf(a) == familyOf(b)
	}
	return a[headerLen] == b[headerLen]
}

// answer returns the datagrams that answer a request: the recorded ones, with the
// sequence number and port of the request. Acknowledgements and the end of a dump depend
// on the form of the request.
func (r *replayer) answer(request []byte) [][]byte {
	ask := headerOf(request)
	stored := r.find(request)
	if stored == nil {
		refusal := binary.NativeEndian.AppendUint32(nil, uint32(1<<32-int64(syscall.EOPNOTSUPP)))
		return [][]byte{message(header{typ: msgError, seq: ask.seq, pid: ask.pid}, append(refusal, request[:headerLen]...))}
	}
	dump := ask.flags&flagDump == flagDump
	acked, ended := false, false
	var out [][]byte
	for _, d := range stored {
		var datagram []byte
		for _, m := range split(r.t, d) {
			h := headerOf(m)
			h.seq, h.pid = ask.seq, ask.pid
			payload := bytes.Clone(m[headerLen:])
			switch h.typ {
			case msgError:
				acked, ended = true, true
				if binary.NativeEndian.Uint32(payload) == 0 {
					if dump {
						ended = false
						continue
					}
					if ask.flags&flagAck == 0 {
						continue
					}
				}
			case msgDone:
				ended = true
			default:
				if dump {
					h.flags |= flagMulti
				}
			}
			m = message(h, payload)
			datagram = append(datagram, m...)
			datagram = append(datagram, make([]byte, -len(m)&3)...)
		}
		if len(datagram) > 0 {
			out = append(out, datagram)
		}
	}
	if dump && !ended {
		out = append(out, message(header{typ: msgDone, flags: flagMulti, seq: ask.seq, pid: ask.pid}, make([]byte, 4)))
	}
	if !dump && !acked && ask.flags&flagAck != 0 {
		out = append(out, message(header{typ: msgError, seq: ask.seq, pid: ask.pid}, append(make([]byte, 4), request[:headerLen]...)))
	}
	return out
}
