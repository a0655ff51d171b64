// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestHandOver checks that sessions that exist, and later ones, learn of the next stack;
// that connections continue; and that the session ends with its last connection.
func TestHandOver(t *testing.T) {
	end := make(chan struct{})
	h := &handler{
		listen: func(*Descriptor) error { return nil },
		connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
			select {
			case <-end:
			case <-ctx.Done():
			}
			_ = c.NotCandidate("over")
		},
	}
	srv := &Server{Handler: h}
	path := serve(t, srv)
	cl := dial(t, path)
	c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-cl.HandedOver():
		t.Fatal("handed over without HandOver")
	case <-time.After(10 * time.Millisecond):
	}
	srv.HandOver()
	srv.HandOver()
	for _, cl := range []*Client{cl, dial(t, path)} {
		select {
		case <-cl.HandedOver():
		case <-time.After(30 * time.Second):
			t.Fatal("not told")
		}
		// The session works as before until Leave.
		if err := cl.Listen(t.Context(), tcpSocket(t)); err != nil {
			t.Error(err)
		}
		cl.Leave()
		_, cerr := cl.Connect(tcpSocket(t), ConnectRequest{})
		_, aerr := cl.Accept(tcpSocket(t), ConnectRequest{}.Remote, ConnectRequest{}.Remote)
		for _, err := range []error{cerr, aerr, cl.Listen(t.Context(), tcpSocket(t))} {
			if !errors.Is(err, ErrLeft) {
				t.Errorf("after Leave: %v", err)
			}
		}
	}
	if err := cl.Err(); err != nil {
		t.Errorf("ended with a connection: %v", err)
	}
	close(end)
	wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "over"})
	select {
	case <-cl.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the session goes on without connections")
	}
}
