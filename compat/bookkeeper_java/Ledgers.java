// The official client of Apache BookKeeper, driven by lines on standard input: the oracle of tests.
//
//     write DIGEST PASSWORD COUNT close|leave   -> LEDGER_ID
//     read LEDGER_ID DIGEST PASSWORD recover|look   -> LAST_ENTRY LENGTH SHA256_OF_PAYLOADS
//
// PASSWORD "-" is the empty one. Entry N is the text "java entry N". Answers begin with "= ", and
// errors with "! ", since libraries may write to standard output too.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Enumeration;
import java.util.HexFormat;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class Ledgers {
    public static void main(String[] arguments) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri("zk+hierarchical://" + arguments[0]);
        try (BookKeeper client = new BookKeeper(settings)) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            System.out.println("= ready");
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                try {
                    System.out.println("= " + answer(client, line.split(" ")));
                } catch (Exception error) {
                    System.out.println("! " + error);
                }
            }
        }
    }

    private static byte[] password(String word) {
        return word.equals("-") ? new byte[0] : word.getBytes(StandardCharsets.UTF_8);
    }

    private static String answer(BookKeeper client, String[] words) throws Exception {
        if (words[0].equals("write")) {
            BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(words[1]);
            LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password(words[2]));
            for (int number = 0; number < Integer.parseInt(words[3]); number++) {
                ledger.addEntry(("java entry " + number).getBytes(StandardCharsets.UTF_8));
            }
            if (words[4].equals("close")) {
                ledger.close();
            }
            return Long.toString(ledger.getId());
        }
        long id = Long.parseLong(words[1]);
        BookKeeper.DigestType digest = BookKeeper.DigestType.valueOf(words[2]);
        LedgerHandle ledger = words[4].equals("recover")
            ? client.openLedger(id, digest, password(words[3]))
            : client.openLedgerNoRecovery(id, digest, password(words[3]));
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        long last = ledger.getLastAddConfirmed();
        if (last >= 0) {
            Enumeration<LedgerEntry> entries = ledger.readEntries(0, last);
            while (entries.hasMoreElements()) {
                sum.update(entries.nextElement().getEntry());
            }
        }
        return last + " " + ledger.getLength() + " " + HexFormat.of().formatHex(sum.digest());
    }
}
