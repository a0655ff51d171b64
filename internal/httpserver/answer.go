// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"bytes"
	"maps"
	"net/http"
	"sync"
)

// sourceAnswers is how many requests of one source are answered at a time. More wait for their turn: handlers bound what they do for all
// at a time, and no source may have all of that.
const sourceAnswers = 2

// answers has handlers answer a few requests of each source at a time, and what clients take at their own speed is not a part
// of it: the answer is sent when the handler has ended.
type answers struct {
	next http.Handler

	mu   sync.Mutex
	from map[source]*turns // sources that have requests
}

type turns struct {
	n    int // requests
	turn chan struct{}
}

func inTurn(next http.Handler) *answers {
	return &answers{next: next, from: map[source]*turns{}}
}

// ServeHTTP implements http.Handler.
func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var from source
	if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
		from = c.from
	}
	answer := &answer{header: http.Header{}}
	if !a.answer(from, answer, r) {
		return // the client has gone
	}
	maps.Copy(w.Header(), answer.header)
	if answer.status != 0 {
		w.WriteHeader(answer.status)
	}
	_, _ = w.Write(answer.body.Bytes()) // it may have gone
}

// answer calls the handler when it is the turn of a request.
func (a *answers) answer(from source, w http.ResponseWriter, r *http.Request) bool {
	t := a.enter(from)
	defer a.leave(from, t)
	select {
	case t.turn <- struct{}{}:
	case <-r.Context().Done():
		return false
	}
	defer func() { <-t.turn }()
	a.next.ServeHTTP(w, r)
	return true
}

func (a *answers) enter(from source) *turns {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.from[from]
	if t == nil {
		t = &turns{turn: make(chan struct{}, sourceAnswers)}
		a.from[from] = t
	}
	t.n++
	return t
}

func (a *answers) leave(from source, t *turns) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.n--; t.n == 0 {
		delete(a.from, from)
	}
}

// An answer is one that a handler makes.
type answer struct {
	header http.Header
	status int // 0: none was said
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter. Later calls do nothing.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
