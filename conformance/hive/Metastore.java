import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** Hive's metastore with the tables for locks, which otherwise a script of Hive's distribution creates. */
public final class Metastore {
    private Metastore() {}

    public static void main(String[] words) throws Throwable {
        Configuration settings = MetastoreConf.newMetastoreConf();
        TxnDbUtil.prepDb(settings);
        HiveMetaStore.main(words);
    }
}
